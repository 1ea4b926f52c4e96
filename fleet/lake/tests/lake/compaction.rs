//! Few files instead of many, and no reader sees a difference.

use crate::common::{MINUTE, Place, ReadRow, TEN, after, run};
use aiprof_fleet_testkit::{Programs, Random};
use aiprof_lake::time::{DAY_NS, HOUR_NS};
use aiprof_lake::{CompactOptions, Lake};
use std::path::Path;
use std::time::Duration;

/// When the day is over for good.
const NEXT_DAY: u64 = TEN + 40 * HOUR_NS;

fn options() -> CompactOptions {
    CompactOptions {
        grace: Duration::from_secs(600),
        ..CompactOptions::default()
    }
}

/// Files of some hosts and hours.
fn fill(place: &Place, hosts: u64, hours: u64) {
    let programs = Programs::new(1, 4, 60);
    let mut random = Random(9);
    for host in 0..hosts {
        let lake = Place::lake_of(place.directory.path(), &format!("h{host}"));
        for hour in 0..hours {
            for minute in [0, 10] {
                let start = TEN + hour * HOUR_NS + minute * MINUTE;
                place.put(start, host, &programs.window(&mut random, start, 30));
            }
        }
        run(lake.roll_up(&place.queue, after(hours))).unwrap();
    }
    assert_eq!(place.waiting(), 0);
}

fn paths(lake: &Lake) -> Vec<String> {
    let files = run(lake.files(0..u64::MAX)).unwrap();
    files.into_iter().map(|file| file.path).collect()
}

fn on_disk(place: &Place) -> usize {
    let folder = place.directory.path().join("lake/date=2026-11-26");
    std::fs::read_dir(folder).unwrap().count()
}

#[test]
fn all_rows_count_once_at_each_step() {
    let place = Place::new();
    fill(&place, 5, 6);
    let expected: Vec<ReadRow> = place.rows();
    assert_eq!((paths(&place.lake).len(), on_disk(&place)), (30, 30));
    // A reader that listed before.
    let before = run(place.lake.files(0..u64::MAX)).unwrap();
    let done = run(place.lake.compact(&options(), NEXT_DAY)).unwrap();
    assert_eq!((done.merged, done.files, done.swept), (30, 1, 0));
    assert_eq!(done.rows, expected.len() as u64);
    let compacted = paths(&place.lake);
    assert_eq!(compacted.len(), 1);
    assert!(
        compacted[0].starts_with("date=2026-11-26/c1-"),
        "{compacted:?}"
    );
    assert_eq!(place.rows(), expected);
    assert_eq!(place.rows_of(&before), expected);
    assert_eq!(on_disk(&place), 31);
    // Nothing is left to do, and what was replaced goes after a while.
    let done = run(place.lake.compact(&options(), NEXT_DAY + MINUTE)).unwrap();
    assert_eq!((done.merged, done.swept), (0, 0));
    let done = run(place.lake.compact(&options(), NEXT_DAY + 11 * MINUTE)).unwrap();
    assert_eq!((done.merged, done.swept, on_disk(&place)), (0, 30, 1));
    assert_eq!(place.rows(), expected);
    // A host that was cut off puts a file there again that was replaced.
    let again = place.directory.path().join("lake").join(&before[3].path);
    let kept = place.directory.path().join("lake").join(&compacted[0]);
    std::fs::copy(&kept, &again).unwrap();
    assert_eq!(place.rows(), expected);
    std::fs::remove_file(&again).unwrap();
    // And one brings windows of that day: they count at once, and are merged.
    let programs = Programs::new(1, 4, 60);
    place.put(TEN, 77, &programs.window(&mut Random(1), TEN, 30));
    let late = Place::lake_of(place.directory.path(), "late");
    run(late.roll_up(&place.queue, NEXT_DAY)).unwrap();
    let with_late = place.rows();
    assert!(with_late.len() > expected.len());
    let done = run(place.lake.compact(&options(), NEXT_DAY)).unwrap();
    assert_eq!((done.merged, done.files), (2, 1));
    assert!(paths(&place.lake)[0].starts_with("date=2026-11-26/c2-"));
    assert_eq!(place.rows(), with_late);
}

#[test]
fn while_a_day_goes_on_only_hours_with_many_files_are_merged() {
    let place = Place::new();
    fill(&place, 5, 3);
    let now = TEN + 3 * HOUR_NS;
    // The hours of 10 and 11 are over.
    let done = run(place.lake.compact(&options(), now)).unwrap();
    assert_eq!(done.merged, 0);
    let few = CompactOptions {
        min_files: 4,
        max_files: 4,
        ..options()
    };
    let expected = place.rows();
    let done = run(place.lake.compact(&few, now)).unwrap();
    assert_eq!((done.merged, done.files), (8, 2));
    assert_eq!(paths(&place.lake).len(), 15 - 8 + 2);
    assert_eq!(place.rows(), expected);
    // The next day all of it; small steps come to the same.
    let done = run(place.lake.compact(&few, NEXT_DAY)).unwrap();
    assert!(done.merged > 9, "{done:?}");
    assert_eq!(paths(&place.lake).len(), 1);
    assert_eq!(place.rows(), expected);
    // Parts of a size.
    let place = Place::new();
    fill(&place, 3, 2);
    let expected = place.rows();
    let small = CompactOptions {
        file_bytes: 1 << 20,
        ..options()
    };
    run(place.lake.compact(&small, NEXT_DAY)).unwrap();
    assert_eq!(place.rows(), expected);
}

#[test]
fn several_compactors_agree() {
    let place = Place::new();
    fill(&place, 4, 5);
    let expected = place.rows();
    let lakes: Vec<Lake> = (0..4)
        .map(|n| Place::lake_of(place.directory.path(), &format!("c{n}")))
        .collect();
    let mut threads = Vec::new();
    for (n, lake) in lakes.into_iter().enumerate() {
        let options = CompactOptions {
            max_files: 3 + n,
            ..options()
        };
        threads.push(std::thread::spawn(move || {
            run(lake.compact(&options, NEXT_DAY)).unwrap()
        }));
    }
    // Readers meanwhile see all rows once.
    let mut reads = 0;
    while threads.iter().any(|thread| !thread.is_finished()) {
        assert_eq!(place.rows(), expected);
        reads += 1;
    }
    let done: Vec<_> = threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect();
    println!("{reads} reads, {done:?}");
    assert_eq!(place.rows(), expected);
    run(place.lake.compact(&options(), NEXT_DAY)).unwrap();
    assert_eq!(paths(&place.lake).len(), 1);
    assert_eq!(place.rows(), expected);
}

#[test]
fn a_compactor_that_ended_half_way_leaves_nothing_that_counts() {
    let place = Place::new();
    fill(&place, 2, 2);
    let expected = place.rows();
    // It wrote a file and did not come to commit.
    let folder = place.directory.path().join("lake/date=2026-11-26");
    let some = paths(&place.lake);
    let source = place.directory.path().join("lake").join(&some[0]);
    std::fs::copy(source, folder.join("c1-0123456789abcdef-0.parquet")).unwrap();
    assert_eq!(place.rows(), expected);
    run(place.lake.compact(&options(), NEXT_DAY)).unwrap();
    assert_eq!(place.rows(), expected);
    // A day later it is swept: the ages of files are by the clock of this machine.
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_nanos() as u64;
    let later = now.max(NEXT_DAY) + 2 * DAY_NS;
    run(place.lake.compact(&options(), later)).unwrap();
    assert_eq!(on_disk(&place), 1);
    assert_eq!(place.rows(), expected);
}

#[test]
fn what_is_no_file_of_a_lake_is_left_alone_and_counted() {
    let place = Place::new();
    fill(&place, 2, 2);
    let folder = place.directory.path().join("lake/date=2026-11-26");
    std::fs::write(folder.join("h10-bad-0.parquet"), "PAR1 no, it is not PAR1").unwrap();
    std::fs::write(folder.join("notes.txt"), "mine").unwrap();
    let mut half = std::fs::read(
        Path::new(&folder).join(
            paths(&place.lake)
                .iter()
                .find(|path| path.contains("idh1"))
                .unwrap()
                .rsplit('/')
                .next()
                .unwrap(),
        ),
    )
    .unwrap();
    let middle = half.len() / 3;
    half[middle..middle + 64].fill(0xff);
    std::fs::write(folder.join("h10-half-0.parquet"), &half).unwrap();
    let done = run(place.lake.compact(&options(), NEXT_DAY)).unwrap();
    assert_eq!((done.merged, done.files), (4, 1), "{done:?}");
    assert!(done.unreadable >= 2, "{done:?}");
    assert!(folder.join("notes.txt").exists());
}

#[test]
fn days_go_when_they_are_older_than_is_kept() {
    let place = Place::new();
    fill(&place, 2, 2);
    run(place.lake.compact(&options(), NEXT_DAY)).unwrap();
    let url = place.directory.path().join("lake").display().to_string();
    let config = aiprof_fleet::config::Lake {
        keep: Some(Duration::from_secs(7 * 86_400)),
        ..super::common::config(&url)
    };
    let lake = Lake::open(&config, "x", "x").unwrap();
    let done = run(lake.compact(&options(), NEXT_DAY)).unwrap();
    assert_eq!((done.expired_days, paths(&lake).len()), (0, 1));
    let done = run(lake.compact(&options(), NEXT_DAY + 8 * DAY_NS)).unwrap();
    assert_eq!((done.expired_days, paths(&lake).len()), (1, 0));
    assert!(!Path::new(&url).join("date=2026-11-26").exists());
    assert!(!Path::new(&url).join("_commits/date=2026-11-26").exists());
}
