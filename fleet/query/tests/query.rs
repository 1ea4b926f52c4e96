//! The program, on lakes of synthetic windows with a known answer.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests may end where they are wrong"
)]

use aiprof_fleet_testkit::{PERIOD, Programs, Random};
use aiprof_formats::export::pprof::proto::PprofProfile;
use aiprof_lake::file::{FileWriter, Packing};
use aiprof_lake::rows::Rows;
use aiprof_lake::schema::TextField;
use aiprof_lake::time::{HOUR_NS, date, day_of, hour_of};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

/// 2026-11-26, 10:00.
const TEN: u64 = 1_795_687_200_000_000_000;
const MINUTE: u64 = 60_000_000_000;

fn run(lake: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_aiprof-query"));
    command.args(&arguments[..1]).arg("--lake").arg(lake);
    command.args(&arguments[1..]).output().unwrap()
}

/// A run of which the time is that of the synthetic windows.
fn run_all(lake: &Path, arguments: &[&str]) -> Output {
    let time = ["--from", "2026-11-26T00:00:00Z", "--to", "2026-11-28"];
    let all: Vec<&str> = arguments.iter().chain(&time).copied().collect();
    run(lake, &all)
}

/// Its exit code, and what it prints on stderr.
fn said(lake: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let done = run_all(lake, arguments);
    (done.status.code(), String::from_utf8(done.stderr).unwrap())
}

/// What it writes.
fn ask(lake: &Path, arguments: &[&str]) -> String {
    let done = run_all(lake, arguments);
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{arguments:?}: {said}");
    print!("{said}");
    String::from_utf8(done.stdout).unwrap()
}

/// Puts rows into a lake as a host's hour.
fn put(lake: &Path, host: &str, start: u64, mut rows: Rows) {
    rows.sort();
    let mut writer = FileWriter::new(Packing::Quick).unwrap();
    for row in rows.iter() {
        writer.push(&row).unwrap();
    }
    let folder = lake.join(format!("date={}", date(day_of(start))));
    std::fs::create_dir_all(&folder).unwrap();
    let name = format!("h{:02}-{host}-0.parquet", hour_of(start));
    std::fs::write(folder.join(name), writer.finish().unwrap().bytes).unwrap();
}

/// Adds `samples` samples of a function of a service.
fn add(rows: &mut Rows, time: u64, of: [(TextField, &str); 2], stack: &str, samples: i64) {
    if samples == 0 {
        return;
    }
    let function = stack.rsplit(';').next().unwrap();
    let texts = [
        of[0],
        of[1],
        (TextField::Stack, stack),
        (TextField::Function, function),
    ];
    let sample = rows.sample(time as i64, MINUTE as i64, &texts, "team\0blue\0");
    rows.push(sample, ("cpu", "nanoseconds"), samples * PERIOD, samples);
}

/// Two hosts, two services; `parse` has 30 of 100 samples of `shop`.
fn small() -> tempfile::TempDir {
    let lake = tempfile::tempdir().unwrap();
    for host in ["a", "b"] {
        let mut rows = Rows::new(&format!("id-{host}"), host);
        for minute in 0..10 {
            let time = TEN + minute * MINUTE;
            let shop = [(TextField::Service, "shop"), (TextField::Version, "1")];
            add(&mut rows, time, shop, "main;serve;parse", 3);
            add(&mut rows, time, shop, "main;serve;parse;parse;copy", 1);
            add(&mut rows, time, shop, "main;serve", 6);
            let bank = [(TextField::Service, "bank"), (TextField::Version, "")];
            add(&mut rows, time, bank, "main;pay", 5);
        }
        put(lake.path(), host, TEN, rows);
    }
    lake
}

#[test]
fn top_is_what_takes_most() {
    let lake = small();
    let csv = ["--format", "csv"];
    let top = |more: &[&str]| {
        let mut all = vec!["top"];
        all.extend(csv);
        all.extend(more);
        ask(lake.path(), &all)
    };
    let line = |samples: i64, percent: f64, name: &str| {
        format!("{},{percent},{samples},{name}\n", samples * PERIOD)
    };
    let expected = format!(
        "value,percent,samples,function\n{}{}{}",
        line(120, 60.0, "serve"),
        line(60, 30.0, "parse"),
        line(20, 10.0, "copy")
    );
    assert_eq!(top(&["--service", "shop"]), expected);
    let by_service = top(&["--by", "service"]);
    assert!(
        by_service.contains(&line(200, 200.0 / 3.0, "shop")),
        "{by_service}"
    );
    // A function that calls itself has its time once.
    let total = top(&["--service", "shop", "--total"]);
    let parse = format!("{},40,{},30,parse\n", 80 * PERIOD, 60 * PERIOD);
    assert!(total.contains(&parse), "{total}");
    // Conditions on columns and labels.
    for (condition, rows) in [
        ("version=1", 3),
        ("team=blue", 4),
        ("team=red", 0),
        ("host=a", 4),
    ] {
        let found = top(&["--where", condition]);
        assert_eq!(found.lines().count(), rows + 1, "{condition}: {found}");
    }
    let one_host = top(&["--host", "id-b", "--service", "shop"]);
    assert!(one_host.contains(&line(60, 60.0, "serve")), "{one_host}");
    let by_label = top(&["--by", "team"]);
    assert!(by_label.contains(",300,blue"), "{by_label}");
    let nothing = top(&["--type", "off_cpu"]);
    assert_eq!(nothing.lines().count(), 1);
}

#[test]
fn stacks_become_pictures_and_text() {
    let lake = small();
    let file = |name: &str| lake.path().join(name).display().to_string();
    for name in ["x.folded", "x.svg", "x.html", "x.pb.gz"] {
        ask(
            lake.path(),
            &["flame", "-o", &file(name), "--by", "service"],
        );
    }
    let folded = std::fs::read_to_string(file("x.folded")).unwrap();
    let micro = |samples: i64| (samples * PERIOD + 500) / 1000;
    let expected = format!(
        "bank;main;pay {}\nshop;main;serve {}\nshop;main;serve;parse {}\n\
         shop;main;serve;parse;parse;copy {}\n",
        micro(100),
        micro(120),
        micro(60),
        micro(20)
    );
    assert_eq!(folded, expected);
    for name in ["x.svg", "x.html"] {
        let picture = std::fs::read_to_string(file(name)).unwrap();
        assert!(
            picture.contains("<svg") && picture.contains("parse"),
            "{name}"
        );
    }
    let done = run(lake.path(), &["flame", "-o", "x.docx"]);
    assert_eq!(done.status.code(), Some(2));
}

#[test]
fn sql_reads_and_only_reads() {
    let lake = small();
    let sql = |query: &str| ask(lake.path(), &["sql", "--format", "csv", query]);
    let found = sql(
        "SELECT host, labels['team'] AS team, sum(count) AS n FROM profiles \
         WHERE service = 'shop' GROUP BY 1, 2 ORDER BY 1",
    );
    assert_eq!(found, "host,team,n\na,blue,100\nb,blue,100\n");
    let found = sql("SELECT count(*) AS n FROM profiles WHERE time >= '2026-11-26T10:05:00Z'");
    assert_eq!(found, "n\n40\n");
    for query in [
        "DROP TABLE profiles",
        "CREATE TABLE x AS SELECT 1",
        "COPY profiles TO '/tmp/x.csv'",
        "INSERT INTO profiles SELECT * FROM profiles",
        "SET datafusion.execution.batch_size = 1",
        "SELECT nothing FROM profiles",
    ] {
        let done = run(lake.path(), &["sql", query]);
        assert_eq!(done.status.code(), Some(1), "{query}");
        assert!(!done.stderr.is_empty());
    }
    let files = ask(lake.path(), &["files"]);
    assert_eq!(files.lines().count(), 2, "{files}");
}

#[test]
fn a_directory_of_windows_is_asked_as_a_lake_is() {
    let place = tempfile::tempdir().unwrap();
    let programs = Programs::new(3, 2, 40);
    let mut random = Random(4);
    for minute in 0..5 {
        let start = TEN + minute * MINUTE;
        let window = programs.window(&mut random, start, 50);
        std::fs::write(place.path().join(format!("w{minute}.pb.gz")), window).unwrap();
    }
    std::fs::write(place.path().join("bad.pb.gz"), "no").unwrap();
    let found = ask(
        place.path(),
        &[
            "sql",
            "SELECT sum(count) AS n FROM profiles WHERE sample_type = 'cpu'",
            "--format",
            "csv",
        ],
    );
    assert_eq!(found, "n\n250\n");
    let empty = tempfile::tempdir().unwrap();
    assert!(ask(empty.path(), &["top"]).lines().count() == 1);
    let done = run(Path::new("/nonexistent/lake"), &["top"]);
    assert_eq!(done.status.code(), Some(1));
}

#[test]
fn compaction_changes_no_answer() {
    let lake = small();
    let before = ask(lake.path(), &["top"]);
    // The day is over only if this test runs later than it.
    let done = run(lake.path(), &["compact", "--grace", "0s"]);
    assert!(done.status.success());
    assert_eq!(ask(lake.path(), &["top"]), before);
    assert!(
        !run(Path::new("/nonexistent/lake"), &["compact"])
            .status
            .success()
    );
}

/// A number of hits of a chance.
fn hits(random: &mut Random, n: i64, chance: f64) -> i64 {
    (0..n).filter(|_| random.unit() < chance).count() as i64
}

/// What a table of `diff` or `regressions` has, as CSV.
fn rows(csv: &str) -> Vec<BTreeMap<String, String>> {
    let mut lines = csv.lines();
    let names: Vec<&str> = lines.next().unwrap().split(',').collect();
    let row = |line: &str| {
        let cells = names.iter().zip(line.split(','));
        cells
            .map(|(name, cell)| ((*name).to_owned(), cell.to_owned()))
            .collect()
    };
    lines.map(row).collect()
}

#[test]
fn a_change_of_three_points_has_an_interval_that_has_it() {
    let lake = tempfile::tempdir().unwrap();
    let mut random = Random(8);
    for host in 0..12 {
        let name = format!("web-{host}");
        for (hour, share) in [(0, 0.10), (1, 0.13)] {
            let mut rows = Rows::new(&format!("id-{host}"), &name);
            for minute in 0..60 {
                let time = TEN + hour * HOUR_NS + minute * MINUTE;
                let grown = hits(&mut random, 450, share);
                let other = hits(&mut random, 450 - grown, 0.5);
                let of = [(TextField::Service, "shop"), (TextField::Version, "1")];
                add(&mut rows, time, of, "main;grown", grown);
                add(&mut rows, time, of, "main;other", other);
                add(&mut rows, time, of, "main", 450 - grown - other);
            }
            put(
                lake.path(),
                &format!("id{host}"),
                TEN + hour * HOUR_NS,
                rows,
            );
        }
    }
    let svg = lake.path().join("x.svg");
    let arguments = [
        "diff",
        "--before",
        "2026-11-26T10:00:00Z..2026-11-26T11:00:00Z",
        "--after",
        "2026-11-26T11:00:00Z..2026-11-26T12:00:00Z",
        "--svg",
        svg.to_str().unwrap(),
        "--format",
        "csv",
    ];
    let found = rows(&ask(lake.path(), &arguments));
    let grown = found.iter().find(|row| row["function"] == "grown").unwrap();
    let number = |key: &str| grown[key].parse::<f64>().unwrap();
    assert_eq!(grown["verdict"], "changed");
    assert!(
        (number("change") - 3.0).abs() <= number("half"),
        "{grown:?}"
    );
    // 12 hosts of 27,000 samples each: a tenth of a point.
    assert!(number("half") < 0.3, "{grown:?}");
    assert!(std::fs::read_to_string(svg).unwrap().contains("grown"));
    // One host against another, by parts of the time.
    let arguments = [
        "diff",
        "--before",
        "host=web-1",
        "--after",
        "host=web-2",
        "--format",
        "csv",
    ];
    let found = rows(&ask(lake.path(), &arguments));
    assert!(
        found.iter().all(|row| row["verdict"] == "within noise"),
        "{found:?}"
    );
    let wrong = run(lake.path(), &["diff", "--before", "x", "--after", "y=1"]);
    assert_eq!(wrong.status.code(), Some(2));
}

#[test]
fn of_a_hundred_deploys_the_one_that_regressed_is_found() {
    let lake = tempfile::tempdir().unwrap();
    let mut random = Random(21);
    // Synthetic: 20 services of 12 hosts, each deployed 5 times; 40 functions, of which one
    // takes a point more from the third version of one service on.
    let (services, hosts, versions) = (20, 12, 6);
    for service in 0..services {
        let name = format!("service-{service}");
        for host in 0..hosts {
            let id = format!("s{service}h{host}");
            // Hosts differ from each other.
            let own: Vec<f64> = (0..40).map(|_| 0.8 + 0.4 * random.unit()).collect();
            let mut rows = Rows::new(&id, &id);
            for version in 0..versions {
                let time = TEN + version * 10 * MINUTE;
                let mut weights: Vec<f64> =
                    (0..40).map(|at| own[at] * 0.97 / (at + 1) as f64).collect();
                let sum: f64 = weights.iter().sum();
                weights.iter_mut().for_each(|weight| *weight /= sum);
                if service == 7 && version >= 3 {
                    weights.iter_mut().for_each(|weight| *weight *= 0.99);
                    weights[5] += 0.01;
                }
                let text = version.to_string();
                let of = [
                    (TextField::Service, name.as_str()),
                    (TextField::Version, text.as_str()),
                ];
                let mut counts = vec![0_i64; weights.len()];
                for _ in 0..10_000 {
                    let mut at = random.unit();
                    let mut chosen = 0;
                    while chosen + 1 < weights.len() && at >= weights[chosen] {
                        at -= weights[chosen];
                        chosen += 1;
                    }
                    counts[chosen] += 1;
                }
                for (at, count) in counts.into_iter().enumerate() {
                    add(&mut rows, time, of, &format!("main;f{at}"), count);
                }
            }
            put(lake.path(), &id, TEN, rows);
        }
    }
    let arguments = ["regressions", "--format", "csv", "--improvements"];
    let found = rows(&ask(lake.path(), &arguments));
    assert_eq!(found.len(), 1, "{found:?}");
    let row = &found[0];
    assert_eq!(
        (
            row["service"].as_str(),
            row["function"].as_str(),
            row["new"].as_str()
        ),
        ("service-7", "f5", "3")
    );
    let change: f64 = row["change"].parse().unwrap();
    assert!((change - 1.0).abs() < 0.4, "{row:?}");
}

#[test]
fn of_versions_that_run_as_the_time_begins_the_one_that_goes_is_the_older() {
    let lake = tempfile::tempdir().unwrap();
    let mut random = Random(5);
    // Half of the hosts have version 2 already, and were seen first; the others follow after
    // half an hour. `f` takes 10 points more in it.
    for host in 0..16 {
        let id = format!("h{host}");
        let mut rows = Rows::new(&id, &id);
        for minute in 0..60 {
            let is_new = host % 2 == 0 || minute >= 30;
            let late = if host % 2 == 0 { 0 } else { MINUTE / 2 };
            let (version, share) = if is_new { ("2", 0.3) } else { ("1", 0.2) };
            let of = [(TextField::Service, "shop"), (TextField::Version, version)];
            let f = hits(&mut random, 200, share);
            let time = TEN + minute * MINUTE + late;
            add(&mut rows, time, of, "main;f", f);
            add(&mut rows, time, of, "main;g", 200 - f);
        }
        put(lake.path(), &id, TEN, rows);
    }
    let of = |to: &str| {
        let arguments = [
            "--from",
            "2026-11-26T10:00:00Z",
            "--to",
            to,
            "--format",
            "csv",
        ];
        let all: Vec<&str> = std::iter::once("regressions").chain(arguments).collect();
        let done = run(lake.path(), &all);
        let said = String::from_utf8(done.stderr).unwrap();
        (rows(&String::from_utf8(done.stdout).unwrap()), said)
    };
    let (found, said) = of("2026-11-26T11:00:00Z");
    assert_eq!(found.len(), 1, "{said}");
    let told = ["function", "old", "new"].map(|key| found[0][key].as_str());
    assert_eq!(told, ["f", "1", "2"]);
    // As long as both run, the order is unknown.
    let (found, said) = of("2026-11-26T10:30:00Z");
    assert!(found.is_empty() && said.contains("side by side"), "{said}");
}

#[test]
fn more_than_292_years_of_cpu_time_add_up() {
    let lake = tempfile::tempdir().unwrap();
    let mut rows = Rows::new("id", "a");
    for minute in 0..4 {
        let texts = [
            (TextField::Service, "shop"),
            (TextField::Stack, "main;f"),
            (TextField::Function, "f"),
        ];
        let time = (TEN + minute * MINUTE) as i64;
        let sample = rows.sample(time, MINUTE as i64, &texts, "");
        rows.push(sample, ("cpu", "nanoseconds"), 4_000_000_000_000_000_000, 1);
    }
    let shop = [(TextField::Service, "shop"), (TextField::Version, "")];
    add(&mut rows, TEN, shop, "main;g", 1);
    put(lake.path(), "a", TEN, rows);
    let top = ask(lake.path(), &["top", "--format", "csv"]);
    assert!(top.contains("\n16000000000000000000,"), "{top}");
    assert!(top.lines().nth(1).unwrap().ends_with(",4,f"), "{top}");
}

/// Minutes of a host that runs a version: `f` has this share of 200 samples each.
fn runs(
    random: &mut Random,
    rows: &mut Rows,
    minutes: std::ops::Range<u64>,
    (service, version, share): (&str, &str, f64),
) {
    let of = [(TextField::Service, service), (TextField::Version, version)];
    for minute in minutes {
        let f = hits(random, 200, share);
        let time = TEN + minute * MINUTE;
        add(rows, time, of, "main;f", f);
        add(rows, time, of, "main;g", 200 - f);
    }
}

/// What `regressions` finds about `f`, as service, old and new version; and what it prints.
fn regressions(lake: &Path) -> (Vec<[String; 3]>, String) {
    let time = [
        "--from",
        "2026-11-26T09:50:00Z",
        "--to",
        "2026-11-26T11:10:00Z",
    ];
    let all: Vec<&str> = ["regressions", "--format", "csv"]
        .into_iter()
        .chain(time)
        .collect();
    let done = run(lake, &all);
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(done.status.success(), "{said}");
    let found = rows(&String::from_utf8(done.stdout).unwrap());
    let of_f = found.iter().filter(|row| row["function"] == "f");
    let of_f = of_f.map(|row| ["service", "old", "new"].map(|key| row[key].clone()));
    (of_f.collect(), said)
}

#[test]
fn what_hosts_differ_by_is_no_regression() {
    let lake = tempfile::tempdir().unwrap();
    let mut random = Random(17);
    for service in 0..30 {
        for host in 0..12 {
            let id = format!("s{service}h{host}");
            // Hosts differ by tens of points.
            let share = 0.1 + 0.3 * random.unit();
            let mut rows = Rows::new(&id, &id);
            let name = format!("service-{service:02}");
            let (random, name) = (&mut random, name.as_str());
            // In the last one the new version takes 10 points more.
            let grown = if service == 29 { 0.1 } else { 0.0 };
            match (service < 10, host) {
                // Three hosts take over from three others.
                (true, 0..3) => runs(random, &mut rows, 0..30, (name, "1", share)),
                (true, 3..6) => runs(random, &mut rows, 30..60, (name, "2", share)),
                (true, _) => {}
                // Two of twelve get the new version first.
                (false, 0..2) => {
                    runs(random, &mut rows, 0..30, (name, "1", share));
                    runs(random, &mut rows, 30..60, (name, "2", share + grown));
                }
                (false, _) => runs(random, &mut rows, 0..60, (name, "1", share)),
            }
            put(lake.path(), &id, TEN, rows);
        }
    }
    let (found, said) = regressions(lake.path());
    let expected = ["service-29", "1", "2"].map(str::to_owned);
    assert_eq!(found, [expected], "{said}");
    assert!(said.contains("10 deploys are not compared"), "{said}");
    assert!(said.contains("deploys compared: 20"), "{said}");
}

#[test]
fn a_version_is_compared_with_what_ran_before_it() {
    let lake = tempfile::tempdir().unwrap();
    let mut random = Random(19);
    for host in 0..8 {
        let id = format!("h{host}");
        let mut rows = Rows::new(&id, &id);
        // 2 was worse, and rolled back; so is 3.
        for (minutes, version, share) in [
            (0..15, "1", 0.2),
            (15..30, "2", 0.3),
            (30..45, "1", 0.2),
            (45..60, "3", 0.3),
        ] {
            runs(&mut random, &mut rows, minutes, ("shop", version, share));
        }
        // Two that come at once and stay: which is newer is unknown.
        let (version, share) = if host % 2 == 0 {
            ("a", 0.2)
        } else {
            ("b", 0.4)
        };
        runs(&mut random, &mut rows, 0..60, ("both", version, share));
        put(lake.path(), &id, TEN, rows);
    }
    let (mut found, said) = regressions(lake.path());
    found.sort();
    let expected = [["shop", "1", "2"], ["shop", "1", "3"]];
    assert_eq!(found, expected.map(|row| row.map(str::to_owned)), "{said}");
    assert!(
        said.contains("1 pairs of versions ran side by side"),
        "{said}"
    );
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let lake = tempfile::tempdir().unwrap();
    let mut random = Random(2);
    for hour in 0..24 {
        for host in ["a", "b"] {
            let mut rows = Rows::new(host, host);
            runs(
                &mut random,
                &mut rows,
                hour * 60..hour * 60 + 3,
                ("s", "1", 0.2),
            );
            put(lake.path(), host, TEN + hour * HOUR_NS, rows);
        }
    }
    let said = |arguments: &[&str]| said(lake.path(), arguments);
    let folder = lake.path().join("date=2026-11-26");
    let victim = folder.join("h11-a-0.parquet");
    let good = std::fs::read(&victim).unwrap();
    let mut flipped = good.clone();
    flipped[20..120].iter_mut().for_each(|byte| *byte ^= 0x5a);
    let mut length = good.clone();
    let at = length.len() - 8;
    length[at..at + 4].copy_from_slice(&0x7fff_ffff_u32.to_le_bytes());
    let cut = good[..good.len() - 20].to_vec();
    for bad in [Vec::new(), flipped, length, cut] {
        std::fs::write(&victim, &bad).unwrap();
        for query in [
            &["top"][..],
            &["sql", "select sum(value), max(stack) from profiles"],
        ] {
            let (code, said) = said(query);
            assert_eq!(code, Some(1), "{said}");
            assert!(said.contains("h11-a-0.parquet"), "{said}");
        }
        let compacted = run(lake.path(), &["compact", "--grace", "1d"]);
        let said = String::from_utf8(compacted.stderr).unwrap();
        assert_eq!(compacted.status.code(), Some(1), "{said}");
        assert!(said.contains("h11-a-0.parquet"), "{said}");
    }
    std::fs::write(&victim, &good).unwrap();
    assert_eq!(said(&["top"]).0, Some(0));
    // What a compaction has put there goes.
    let is_compacted = |path: &Path| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        name.starts_with('c')
    };
    let mut files = std::fs::read_dir(&folder).unwrap();
    let compacted = files.find_map(|file| {
        let path = file.unwrap().path();
        is_compacted(&path).then_some(path)
    });
    let compacted = compacted.unwrap();
    std::fs::remove_file(&compacted).unwrap();
    let name = compacted
        .file_name()
        .unwrap()
        .to_string_lossy()
        .into_owned();
    let (code, said) = said(&["top"]);
    assert!(code == Some(1) && said.contains(&name), "{said}");
}

#[test]
fn what_is_mistaken_is_told() {
    let lake = small();
    let said = |arguments: &[&str]| said(lake.path(), arguments);
    for (arguments, code, text) in [
        (
            &["top", "--by", "value"][..],
            2,
            "neither a label nor a text column",
        ),
        (&["top", "--where", "count=1"], 2, "neither a label"),
        (
            &["top", "--by", "nosuch"],
            0,
            "no samples have a label nosuch",
        ),
        (
            &["top", "--service", "no"],
            0,
            "no samples of type cpu, service no",
        ),
        (&["top", "--memory", "1"], 2, "64 to"),
        (&["regressions", "--level", "nan"], 2, "between 0 and 1"),
        (&["regressions", "--least", "inf"], 2, "0 to 100"),
    ] {
        let (found, said) = said(arguments);
        assert_eq!(found, Some(code), "{arguments:?}: {said}");
        assert!(said.contains(text), "{arguments:?}: {said}");
    }
    // Who has no such label, and who has.
    let top = |condition: &str| ask(lake.path(), &["top", "--where", condition]);
    assert_eq!(top("team=").lines().count(), 1);
    assert_eq!(
        top("other=").lines().count(),
        top("team=blue").lines().count()
    );
    assert!(top("team=blue").lines().count() > 3);
}

#[test]
fn names_and_numbers_may_be_of_any_length() {
    let lake = tempfile::tempdir().unwrap();
    let mut rows = Rows::new("id", "a");
    let long = "f".repeat(70_000);
    add(
        &mut rows,
        TEN,
        [(TextField::Service, &long), (TextField::Version, "")],
        "main;f",
        1,
    );
    for number in 0..1000_i64 {
        let (function, stack) = (format!("g{number}"), format!("main;g{number}"));
        let texts = [
            (TextField::Service, "small"),
            (TextField::Stack, stack.as_str()),
            (TextField::Function, function.as_str()),
        ];
        let sample = rows.sample(TEN as i64, MINUTE as i64, &texts, "");
        rows.push(sample, ("call_time", "nanoseconds"), 400, 1);
    }
    put(lake.path(), "a", TEN, rows);
    let sql = "select service, function from profiles";
    assert!(ask(lake.path(), &["sql", sql]).contains(&long));
    assert!(ask(lake.path(), &["top", "--by", "service"]).contains(&long));
    // A thousand times 400 ns are 400 us, and of a type of its own.
    let file = |name: &str| lake.path().join(name).display().to_string();
    let flame = |name: &str| {
        let file = file(name);
        ask(lake.path(), &["flame", "--type", "call_time", "-o", &file]);
        std::fs::read(file).unwrap()
    };
    let folded = String::from_utf8(flame("x.folded")).unwrap();
    let values = folded.lines().map(|line| line.rsplit(' ').next().unwrap());
    let sum: u64 = values.map(|value| value.parse::<u64>().unwrap()).sum();
    assert_eq!(sum, 400);
    let mut pprof = Vec::new();
    let packed = flame("x.pb.gz");
    let mut unpacked = flate2::read::GzDecoder::new(packed.as_slice());
    std::io::Read::read_to_end(&mut unpacked, &mut pprof).unwrap();
    let pprof = <PprofProfile as prost::Message>::decode(pprof.as_slice()).unwrap();
    let text = |at: i64| pprof.string_table[at as usize].as_str();
    let of = pprof.sample_type[0];
    assert_eq!(
        (text(of.r#type), text(of.unit)),
        ("call_time", "nanoseconds")
    );
    let values: Vec<i64> = pprof.sample.iter().map(|sample| sample.value[0]).collect();
    assert_eq!(values, [400; 1000]);
}
