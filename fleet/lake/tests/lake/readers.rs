//! Readers that are not ours: DuckDB, ClickHouse and Spark read what docs/lake.md describes.

use crate::common::{MINUTE, Place, TEN, after, run};
use aiprof_fleet_testkit::{Programs, Random};
use aiprof_lake::CompactOptions;
use aiprof_lake::schema::TextField;
use aiprof_lake::time::HOUR_NS;
use aiprof_tests::packages;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The queries of docs/lake.md, by their names, of one of the readers.
fn documented(of: &str) -> BTreeMap<String, String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/lake.md");
    let text = std::fs::read_to_string(path).unwrap();
    let mut found = BTreeMap::new();
    let begin = format!("```sql {of} ");
    let mut rest = text.as_str();
    while let Some(at) = rest.find(&begin) {
        let block = &rest[at + begin.len()..];
        let (name, block) = block.split_once('\n').unwrap();
        let (query, after) = block.split_once("\n```").unwrap();
        found.insert(name.to_owned(), query.to_owned());
        rest = after;
    }
    assert_eq!(found.len(), 5, "{of}: {found:?}");
    found
}

/// A lake of two days with CPU samples, a device's kernels and its idle time.
fn lake() -> Place {
    let place = Place::new();
    let programs = Programs::new(1, 3, 80);
    let mut random = Random(2);
    for hour in [0, 1, 24] {
        for minute in 0..3 {
            let start = TEN + hour * HOUR_NS + minute * MINUTE;
            place.put(start, 1, &programs.window(&mut random, start, 60));
            place.put(start, 2, &super::rolling_up::device_window());
        }
    }
    run(place.lake.roll_up(&place.queue, after(30))).unwrap();
    assert_eq!(place.waiting(), 0);
    place
}

/// Runs queries by a program of Python, and returns the rows of each, as text.
fn answers(
    python: &Path,
    program: &str,
    place: &Place,
    queries: &BTreeMap<String, String>,
) -> Answers {
    let lake = place.directory.path().join("lake");
    let lake = lake.display().to_string();
    let queries: BTreeMap<&String, String> = queries
        .iter()
        .map(|(name, query)| {
            let query = query
                .replace("LAKE", &lake)
                .replace("today()", "DATE '2026-11-27'")
                .replace("current_date", "DATE '2026-11-27'")
                .replace("yesterday()", "DATE '2026-11-26'");
            (name, query)
        })
        .collect();
    let json = serde_json::to_string(&queries).unwrap();
    let mut command = Command::new(python);
    let done = command.args(["-c", program]).arg(json).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
    serde_json::from_slice(&done.stdout).unwrap()
}

/// Checks the answers against what this crate reads.
fn check(place: &Place, found: &Answers) {
    let rows = place.rows();
    let sum = |of: &dyn Fn(&super::common::ReadRow) -> Option<String>| {
        let mut sums: BTreeMap<String, i64> = BTreeMap::new();
        for row in &rows {
            if let Some(key) = of(row) {
                *sums.entry(key).or_default() += row.value();
            }
        }
        sums
    };
    let is = |row: &super::common::ReadRow, kind: &str| row.text(TextField::SampleType) == kind;
    let cpu = sum(&|row| {
        let wanted = is(row, "cpu") && row.text(TextField::Service) == "service-001";
        wanted.then(|| row.text(TextField::Function).to_owned())
    });
    let top = &found["top functions"];
    assert_eq!(top.len(), cpu.len().min(20));
    let most = cpu.values().max().unwrap();
    assert_eq!(top[0][1], most.to_string());
    for row in top {
        assert_eq!(cpu[&row[0]].to_string(), row[1], "{row:?}");
    }
    let kernels =
        sum(&|row| is(row, "device_time").then(|| row.text(TextField::Kernel).to_owned()));
    let expected: Vec<Vec<String>> = kernels
        .iter()
        .map(|(name, value)| vec![name.clone(), value.to_string()])
        .collect();
    assert_eq!(found["device time by kernel"], expected);
    let idle =
        sum(&|row| is(row, "aiprof.idle").then(|| row.text(TextField::IdleCause).to_owned()));
    let expected: Vec<Vec<String>> = idle
        .iter()
        .map(|(name, value)| vec![name.clone(), value.to_string()])
        .collect();
    assert_eq!(found["idle by cause"], expected);
    assert!(!found["what changed since yesterday"].is_empty());
    // The files that count, and no others.
    let count = rows.len().to_string();
    assert_eq!(found["only files that count"], [[count]]);
}

/// Rows of the answers, by the queries' names.
type Answers = BTreeMap<String, Vec<Vec<String>>>;

/// Compacts the lake. While what was replaced is still there, only files that count are read;
/// when it is gone, all is checked.
fn check_compacted(
    place: &Place,
    queries: &BTreeMap<String, String>,
    ask: &dyn Fn(&BTreeMap<String, String>) -> Answers,
) {
    let now = TEN + 80 * HOUR_NS;
    let done = run(place.lake.compact(&CompactOptions::default(), now)).unwrap();
    assert!(done.merged > 0 && done.swept == 0, "{done:?}");
    let mut only = queries.clone();
    only.retain(|name, _| name == "only files that count");
    let count = place.rows().len().to_string();
    assert_eq!(ask(&only)["only files that count"], [[count]]);
    let later = now + HOUR_NS;
    run(place.lake.compact(&CompactOptions::default(), later)).unwrap();
    check(place, &ask(queries));
}

/// A Python with these packages; `None` after saying why a test is left out.
fn python(
    test: &str,
    variable: &str,
    folder: &str,
    packages: &[&str],
    find: &str,
) -> Option<PathBuf> {
    match packages::python(variable, folder, packages, find) {
        Ok((python, _)) => Some(python),
        Err(why) => {
            println!("skipped: {test}: {why}");
            None
        }
    }
}

#[test]
fn duckdb_reads_the_lake() {
    let find = "import duckdb; print(duckdb.__version__)";
    let package = ["duckdb==1.5.5"];
    let test = "duckdb_reads_the_lake";
    let Some(python) = python(test, "AIPROF_TESTS_DUCKDB", "duckdb", &package, find) else {
        return;
    };
    let program = "import duckdb, json, sys\n\
                   out = {}\n\
                   for name, query in json.loads(sys.argv[1]).items():\n    \
                   out[name] = [[str(cell) for cell in row] for row in duckdb.sql(query).fetchall()]\n\
                   print(json.dumps(out))";
    let place = lake();
    let queries = documented("duckdb");
    check(&place, &answers(&python, program, &place, &queries));
    check_compacted(&place, &queries, &|queries| {
        answers(&python, program, &place, queries)
    });
}

#[test]
fn clickhouse_reads_the_lake() {
    let find = "import chdb; print(chdb.__version__)";
    let package = ["chdb-core-lite"];
    let test = "clickhouse_reads_the_lake";
    let Some(python) = python(test, "AIPROF_TESTS_CHDB", "chdb", &package, find) else {
        return;
    };
    let program = "import chdb, json, sys\n\
                   out = {}\n\
                   for name, query in json.loads(sys.argv[1]).items():\n    \
                   text = str(chdb.query(query, 'JSONCompactEachRow'))\n    \
                   rows = [json.loads(line) for line in text.splitlines() if line]\n    \
                   out[name] = [[str(cell) for cell in row] for row in rows]\n\
                   print(json.dumps(out))";
    let place = lake();
    let now = TEN + 80 * HOUR_NS;
    run(place.lake.compact(&CompactOptions::default(), now)).unwrap();
    run(place
        .lake
        .compact(&CompactOptions::default(), now + HOUR_NS))
    .unwrap();
    check(
        &place,
        &answers(&python, program, &place, &documented("clickhouse")),
    );
}

#[test]
fn spark_reads_the_lake() {
    let java = Command::new("java").arg("-version").output();
    if !java.is_ok_and(|done| done.status.success()) {
        println!("skipped: spark_reads_the_lake: needs java");
        return;
    }
    let find = "import pyspark; print(pyspark.__version__)";
    let test = "spark_reads_the_lake";
    let Some(python) = python(test, "AIPROF_TESTS_SPARK", "spark", &["pyspark"], find) else {
        return;
    };
    let program = "import json, sys\n\
                   from pyspark.sql import SparkSession\n\
                   builder = SparkSession.builder.master('local[2]')\n\
                   builder = builder.config('spark.ui.enabled', 'false')\n\
                   builder = builder.config('spark.sql.shuffle.partitions', '2')\n\
                   builder = builder.config('spark.driver.host', '127.0.0.1')\n\
                   spark = builder.getOrCreate()\n\
                   out = {}\n\
                   for name, query in json.loads(sys.argv[1]).items():\n    \
                   rows = spark.sql(query).collect()\n    \
                   out[name] = [[str(cell) for cell in row] for row in rows]\n\
                   print(json.dumps(out))";
    let place = lake();
    let ask = |queries: &_| answers(&python, program, &place, queries);
    check_compacted(&place, &documented("spark"), &ask);
}
