//! Many calls, and the costs of probing.

use super::harness::{Workshop, config, record, run};
use aiprof::profile::LossKind;
use std::time::Duration;

/// Calls at a steady rate: `program RATE SECONDS`; prints how many.
const PACED: &str = r#"
    #include <stdint.h>
    #include <stdio.h>
    #include <stdlib.h>
    #include <time.h>
    int tst_launch(void *, void *, uint32_t, void *);
    static long now(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return t.tv_sec * 1000000000 + t.tv_nsec;
    }
    int main(int argc, char **argv) {
        long rate = atol(argv[1]), seconds = atol(argv[2]), begun = now(), n = 0;
        for (long t = begun; t < begun + seconds * 1000000000; t = now())
            for (; n < (t - begun) * 1e-9 * rate; n++)
                if (tst_launch((void *)1, (void *)n, n & 7, 0)) return 1;
        printf("%ld\n", n);
        return argc != 3;
    }
"#;

#[test]
fn two_hundred_thousand_calls_a_second_are_all_recorded() {
    let test = "two_hundred_thousand_calls_a_second_are_all_recorded";
    if cfg!(debug_assertions) {
        println!("skipped: {test}: needs an optimised build");
        return;
    }
    let Some(shop) = Workshop::new(test) else {
        return;
    };
    let program = shop.program(PACED);
    let (seen, n) = record(&config(false, &[&program]), || {
        run(&program, &["200000", "3"])
    });
    let n: usize = n.trim().parse().unwrap();
    let calls = seen.calls("tst_launch", false);
    println!("{} of {n} calls; {:?}", calls.len(), seen.losses);
    assert!(n >= 590_000, "this machine makes only {n}");
    assert_eq!(calls.len(), n);
    let kernel = seen.probe("tst_launch").slot("kernel").unwrap();
    let in_order = (0..).zip(&calls).all(|(i, call)| call.values[kernel] == i);
    assert!(in_order);
    assert_eq!(seen.losses.get(LossKind::CallRingDrops), 0);
}

#[test]
fn a_hundred_functions_are_attached_and_detached_quickly() {
    let test = "a_hundred_functions_are_attached_and_detached_quickly";
    let Some(shop) = Workshop::new(test) else {
        return;
    };
    let mut source = String::new();
    let mut program = String::from("int main(void) {\n");
    for n in 0..100 {
        source +=
            &format!("volatile int v{n}; long many_{n}(long a) {{ v{n}++; return a + {n}; }}\n");
        program += &format!("    long many_{n}(long); many_{n}({n});\n");
    }
    program += "    return 0;\n}\n";
    let table = r#"
        name = "many"
        api = "Many"
        [[library]]
        files = ["libaiproftest.so"]
        layer = 1
        [[function]]
        symbols = ["many_*"]
        kind = "host"
        exit = "needed"
        args = { number = "arg0" }
        out = { sum = "result" }
    "#;
    shop.compile(&source, "libaiproftest.so", &["-shared", "-fPIC"]);
    let flags = ["-L.", "-laiproftest", "-Wl,-rpath,$ORIGIN"];
    let program = shop.compile(&program, "program", &flags);
    let mut config = config(false, &[&program]);
    let mut tables = aiprof::probes::Tables::default();
    tables.add("many.toml", table).unwrap();
    config.probes.as_mut().unwrap().tables = tables.into();
    let (without, ()) = record(&aiprof::collect::config::RecordConfig::default(), || ());
    let (seen, _) = record(&config, || run(&program, &[]));
    println!(
        "{} functions in {} links; start {:?} (without probes {:?}), end {:?} ({:?})",
        seen.tally.functions, seen.tally.links, seen.start, without.start, seen.end, without.end
    );
    assert_eq!((seen.tally.functions, seen.tally.refused), (100, 0));
    println!(
        "attached in {:?}, detached in {:?}",
        seen.tally.attaching, seen.tally.detaching
    );
    if !cfg!(debug_assertions) {
        assert!(seen.tally.attaching < Duration::from_millis(100));
        assert!(seen.tally.detaching < Duration::from_millis(200));
    }
    for n in 0..100 {
        let function = format!("many_{n}");
        assert_eq!(seen.calls(&function, false).len(), 1, "{function}");
        assert_eq!(seen.calls(&function, true)[0].result, 2 * n, "{function}");
    }
}
