//! Where libraries are, and when they appear.

use super::harness::{Workshop, config, record, run};
use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// How soon a library that appears must be probed. Decoding it takes several times
/// as long without optimisation.
const MOST: Duration = Duration::from_millis(if cfg!(debug_assertions) { 300 } else { 100 });

/// Loads the library given, then calls it every half millisecond; prints when it
/// had loaded it and when the last call was, CLOCK_MONOTONIC nanoseconds.
const LATE: &str = r#"
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <stdint.h>
    #include <stdio.h>
    #include <stdlib.h>
    #include <time.h>
    #include <unistd.h>
    static long now(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return t.tv_sec * 1000000000 + t.tv_nsec;
    }
    int main(int argc, char **argv) {
        usleep(argc > 3 ? (unsigned)atol(argv[3]) : 0);
        void *library = dlopen(argv[1], RTLD_NOW);
        if (!library) return puts(dlerror()), 1;
        long loaded = now();
        int (*launch)(void *, void *, uint32_t, void *) = dlsym(library, "tst_launch");
        long calls = atol(argv[2]);
        for (long i = 0; i < calls; i++) {
            launch((void *)1, (void *)i, 3, 0);
            usleep(500);
        }
        printf("%ld %ld\n", loaded, now());
        return 0;
    }
"#;

/// Starts a program that waits for a line on its standard input.
struct Waiting(Child);

impl Waiting {
    fn start(command: &mut Command) -> Self {
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut waiting = Self(child);
        assert_eq!(waiting.line(), "ready\n");
        waiting
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        let stdout = self.0.stdout.as_mut().unwrap();
        // One byte at a time: what follows is the next call's.
        BufReader::with_capacity(1, stdout)
            .read_line(&mut line)
            .unwrap();
        line
    }

    fn go(mut self) {
        self.0.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert!(self.0.wait().unwrap().success());
    }
}

/// Prints that it is ready, waits, and calls the library that it is linked with.
const PATIENT: &str = r#"
    #include <stdint.h>
    #include <stdio.h>
    int tst_launch(void *, void *, uint32_t, void *);
    int main(void) {
        puts("ready");
        fflush(stdout);
        getchar();
        for (long i = 0; i < 100; i++) tst_launch((void *)1, (void *)i, 3, 0);
        return 0;
    }
"#;

fn nanoseconds(text: &str) -> Vec<u64> {
    text.split_whitespace()
        .map(|n| n.parse().unwrap())
        .collect()
}

#[test]
fn a_library_loaded_later_is_attached_within_100_ms() {
    let Some(shop) = Workshop::new("a_library_loaded_later_is_attached_within_100_ms") else {
        return;
    };
    let library = shop.library();
    let library = library.to_str().unwrap();
    let program = shop.compile(LATE, "late", &["-ldl"]);
    let config = config(false, &[]);
    let (seen, times) = record(&config, || {
        nanoseconds(&run(&program, &[library, "600", "100000"]))
    });
    let calls = seen.calls("tst_launch", false);
    let first = calls.first().expect("no call was seen");
    let late = Duration::from_nanos(first.time_ns - times[0]);
    println!("first call seen {late:?} after the library was loaded");
    assert!(late < MOST, "{late:?}");
    // From then on every one is.
    let number = seen.probe("tst_launch").slot("kernel").unwrap();
    let numbers: Vec<u64> = calls.iter().map(|call| call.values[number]).collect();
    let expected: Vec<u64> = (numbers[0]..600).collect();
    assert_eq!(numbers, expected);
}

#[test]
fn a_running_program_is_seen_from_the_start() {
    let Some(shop) = Workshop::new("a_running_program_is_seen_from_the_start") else {
        return;
    };
    let program = shop.program(PATIENT);
    let waiting = Waiting::start(&mut Command::new(&program));
    let (seen, ()) = record(&config(false, &[]), || waiting.go());
    let calls = seen.calls("tst_launch", false);
    assert_eq!(calls.len(), 100);
    assert_eq!(seen.files().len(), 1);
    println!("started in {:?}, ended in {:?}", seen.start, seen.end);
}

#[test]
fn functions_linked_into_a_program_are_probed() {
    let Some(shop) = Workshop::new("functions_linked_into_a_program_are_probed") else {
        return;
    };
    // Through a pointer, so that it is not inlined.
    let main = "int main(void) {
        int (*volatile launch)(void *, void *, uint32_t, void *) = tst_launch;
        return launch((void *)1, 0, 5, 0);
    }";
    let source = format!("{}\n{main}", super::harness::LIBRARY);
    let program = shop.compile(&source, "static", &["-static"]);
    let (seen, _) = record(&config(false, &[&program]), || run(&program, &[]));
    assert_eq!(seen.calls("tst_launch", false).len(), 1);
    assert_eq!(seen.files()[0].path, program.to_str().unwrap());
}

/// A directory that is unmounted at the end.
struct Mount(PathBuf);

impl Mount {
    fn overlay(lower: &Path, at: PathBuf) -> Option<Self> {
        std::fs::create_dir_all(&at).unwrap();
        let options = format!("lowerdir={}:/var/empty-aiprof-test", lower.display());
        let done = Command::new("mount")
            .args(["-t", "overlay", "overlay", "-o", &options])
            .arg(&at)
            .output();
        let done = done.ok().filter(|done| done.status.success());
        done.map(|_| Self(at))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn one_layer_in_two_overlay_mounts_is_probed_once() {
    let test = "one_layer_in_two_overlay_mounts_is_probed_once";
    let Some(shop) = Workshop::new(test) else {
        return;
    };
    let layer = shop.path("layer");
    std::fs::create_dir(&layer).unwrap();
    let program = shop.program(PATIENT);
    for file in [&program, &shop.path("libaiproftest.so")] {
        std::fs::rename(file, layer.join(file.file_name().unwrap())).unwrap();
    }
    std::fs::create_dir_all("/var/empty-aiprof-test").unwrap();
    let mounts = ["one", "two"].map(|name| Mount::overlay(&layer, shop.path(name)));
    let _ = std::fs::remove_dir("/var/empty-aiprof-test");
    let [Some(one), Some(two)] = mounts else {
        println!("skipped: {test}: overlay cannot be mounted");
        return;
    };
    // One of them runs already, the other one starts later.
    let first = Waiting::start(&mut Command::new(one.0.join("program")));
    let (seen, second) = record(&config(false, &[]), || {
        let second = Waiting::start(&mut Command::new(two.0.join("program")));
        // Long enough to be attached to a second time by mistake.
        std::thread::sleep(Duration::from_millis(150));
        let pids = [first.0.id(), second.0.id()];
        first.go();
        second.go();
        pids
    });
    for pid in second {
        assert_eq!(seen.entries_by_process("tst_launch").get(&pid), Some(&100));
    }
    assert_eq!(seen.files().len(), 1, "{:?}", seen.files());
}

#[test]
fn a_library_of_another_mount_namespace_is_probed() {
    let test = "a_library_of_another_mount_namespace_is_probed";
    let Some(shop) = Workshop::new(test) else {
        return;
    };
    let late = shop.compile(LATE, "late", &["-ldl"]);
    let library = shop.library();
    let hidden = shop.path("hidden");
    std::fs::create_dir(&hidden).unwrap();
    // There, and only there, a file of its own below a mount of its own.
    let script = format!(
        "mount -t tmpfs tmpfs {0} && cp {1} {0}/libaiproftest-other.so && rm {1} && \
         exec {2} {0}/libaiproftest-other.so 600 50000",
        hidden.display(),
        library.display(),
        late.display()
    );
    let (seen, times) = record(&config(false, &[]), || {
        let done = Command::new("unshare")
            .args(["-m", "sh", "-c", &script])
            .output();
        let done = done.ok().filter(|done| done.status.success())?;
        Some(nanoseconds(&String::from_utf8(done.stdout).unwrap()))
    });
    let Some(times) = times else {
        println!("skipped: {test}: no mount namespaces");
        return;
    };
    let calls = seen.calls("tst_launch", false);
    let late = Duration::from_nanos(calls[0].time_ns - times[0]);
    println!("first call seen {late:?} after the library was loaded");
    assert!(late < MOST, "{late:?}");
    assert!(!hidden.join("libaiproftest-other.so").exists());
}

#[test]
fn a_replaced_library_is_told_and_the_new_one_probed() {
    let test = "a_replaced_library_is_told_and_the_new_one_probed";
    let Some(shop) = Workshop::new(test) else {
        return;
    };
    let program = shop.program(PATIENT);
    let waiting = Waiting::start(&mut Command::new(&program));
    let (seen, (old, new)) = record(&config(false, &[]), || {
        let new = shop.compile(
            super::harness::LIBRARY,
            "libaiproftest-new.so",
            &["-shared", "-fPIC"],
        );
        std::fs::rename(new, shop.path("libaiproftest.so")).unwrap();
        let other = Waiting::start(&mut Command::new(&program));
        // Changes are looked for every two seconds.
        let until = Instant::now() + Duration::from_millis(2500);
        std::thread::sleep(until - Instant::now());
        let pids = (waiting.0.id(), other.0.id());
        waiting.go();
        other.go();
        pids
    });
    let by_process = seen.entries_by_process("tst_launch");
    assert_eq!(
        (by_process.get(&old), by_process.get(&new)),
        (Some(&100), Some(&100))
    );
    assert_eq!((seen.tally.files, seen.tally.changed), (2, 1));
    assert_eq!(
        seen.losses
            .get(aiprof::profile::LossKind::ProbedFilesChanged),
        1
    );
}
