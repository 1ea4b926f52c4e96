//! What is reported of calls.

use super::harness::{Workshop, config, record, run};
use aiprof::profile::LossKind;

/// Calls each function `n` times.
const PROGRAM: &str = r#"
    #include <stdint.h>
    #include <stdlib.h>
    int tst_launch(void *, void *, uint32_t, void *);
    long tst_seventh(long, long, long, long, long, long, long);
    int tst_name(void *, const char *, void **);
    int main(int argc, char **argv) {
        long n = atol(argv[1]);
        void *out = 0;
        for (long i = 0; i < n; i++) {
            if (tst_launch((void *)(i % 10 ? 0x10 : 0), (void *)(0x20 + i), i & 7, 0) == 7
                && i % 10) return 1;
            if (tst_seventh(i, 0, 0, 0, 0, 0, i * 3) != i * 4) return 2;
            if (tst_name((void *)1000, i & 1 ? "odd" : "even", &out)) return 3;
        }
        return argc != 2;
    }
"#;

#[test]
fn every_call_is_seen_with_its_values() {
    let Some(shop) = Workshop::new("every_call_is_seen_with_its_values") else {
        return;
    };
    let program = shop.program(PROGRAM);
    for exact in [false, true] {
        let config = config(exact, &[&program]);
        let (seen, _) = record(&config, || run(&program, &["500"]));
        let launches = seen.calls("tst_launch", false);
        assert_eq!(launches.len(), 500, "exact: {exact}");
        let probe = seen.probe("tst_launch");
        let (kernel, groups) = (
            probe.slot("kernel").unwrap(),
            probe.slot("groups_x").unwrap(),
        );
        for (i, call) in (0..).zip(&launches) {
            assert_eq!((call.values[kernel], call.unread), (0x20 + i, 0));
            assert_eq!(call.values[groups], i & 7);
            assert_ne!(call.stack, 0);
        }
        let last = seen.probe("tst_seventh").slot("last").unwrap();
        let seventh = seen.calls("tst_seventh", false);
        let values: Vec<u64> = seventh.iter().map(|call| call.values[last]).collect();
        assert_eq!(values, (0..500).map(|i| i * 3).collect::<Vec<u64>>());
        // Needed exits are always probed, others if asked for.
        let kernel = seen.probe("tst_name").slot("kernel").unwrap();
        let made = seen.calls("tst_name", true);
        let made: Vec<u64> = made.iter().map(|call| call.values[kernel]).collect();
        assert_eq!(made, (0..500).map(|i| 1004 - (i & 1)).collect::<Vec<u64>>());
        let names = seen.texts("tst_name", "name");
        assert_eq!(names.len(), 500);
        assert_eq!((names[0].as_str(), names[1].as_str()), ("even", "odd"));
        let exits = seen.calls("tst_launch", true);
        assert_eq!(exits.len(), if exact { 500 } else { 0 });
        for (i, (exit, entry)) in exits.iter().zip(&launches).enumerate() {
            assert_eq!(exit.result, if i % 10 == 0 { 7 } else { 0 });
            assert!(exit.time_ns > entry.time_ns && exit.sp == entry.sp);
        }
        assert_eq!(seen.losses.get(LossKind::CallRingDrops), 0);
        assert_eq!((seen.tally.files, seen.tally.refused), (1, 0));
    }
}

#[test]
fn a_function_handed_out_is_probed_where_it_is() {
    let Some(shop) = Workshop::new("a_function_handed_out_is_probed_where_it_is") else {
        return;
    };
    let program = shop.program(
        r#"
        #include <unistd.h>
        int tst_resolve(const char *, void **);
        int main(void) {
            int (*hidden)(int) = 0;
            void *nothing = (void *)main + 1;
            if (tst_resolve("tst_launch", &nothing) != 1) return 1;
            if (tst_resolve("tst_hidden", (void **)&hidden)) return 2;
            // Until its first byte is a probe's.
            volatile unsigned char *code = (void *)hidden;
            unsigned char first = *code;
            for (int i = 0; i < 1000 && *code == first; i++) usleep(10000);
            for (int i = 0; i < 100; i++) if (hidden(i) != i + 1) return 3;
            return 0;
        }
    "#,
    );
    let (seen, _) = record(&config(false, &[&program]), || run(&program, &[]));
    let calls = seen.calls("tst_hidden", false);
    let groups = seen.probe("tst_hidden").slot("groups_x").unwrap();
    let values: Vec<u64> = calls.iter().map(|call| call.values[groups]).collect();
    assert_eq!(values, (0..100).collect::<Vec<u64>>());
    // The file may be described again for what was attached later.
    assert!(!seen.files().is_empty());
}

#[test]
fn exceptions_and_jumps_through_probed_functions_change_nothing() {
    let test = "exceptions_and_jumps_through_probed_functions_change_nothing";
    let Some(shop) = Workshop::new(test) else {
        return;
    };
    // Every function of the table, left in every way there is.
    let library = r#"
        #include <csetjmp>
        #include <cstdint>
        #include <stdexcept>
        extern "C" {
        jmp_buf back;
        volatile int sink;
        int tst_launch(void *, void *, uint32_t how, void *) {
            sink = sink + 1;
            if (how == 1) throw std::runtime_error("thrown");
            if (how == 2) longjmp(back, 1);
            sink = sink + 1;
            return (int)how;
        }
        int tst_name(void *handle, const char *, void **out) {
            *out = handle;
            int result = tst_launch(nullptr, nullptr, (uint32_t)(uintptr_t)handle, nullptr);
            sink = sink + 1;
            return result;
        }
        }
    "#;
    let program = r#"
        #include <csetjmp>
        #include <cstdint>
        #include <cstdio>
        #include <stdexcept>
        extern "C" {
        extern jmp_buf back;
        int tst_launch(void *, void *, uint32_t, void *);
        int tst_name(void *, const char *, void **);
        }
        int main() {
            int caught = 0, jumped = 0, returned = 0;
            for (uintptr_t i = 0; i < 300; i++) {
                void *out;
                try {
                    if (setjmp(back)) jumped++;
                    else returned += tst_name((void *)(i % 4), "x", &out) != 1;
                } catch (const std::runtime_error &error) {
                    caught++;
                }
            }
            printf("%d %d %d\n", caught, jumped, returned);
        }
    "#;
    let flags = ["-shared", "-fPIC"];
    shop.compile_with("c++", library, "libaiproftest.so", &flags);
    let flags = ["-L.", "-laiproftest", "-Wl,-rpath,$ORIGIN"];
    let program = shop.compile_with("c++", program, "program", &flags);
    let alone = run(&program, &[]);
    let (seen, probed) = record(&config(true, &[&program]), || run(&program, &[]));
    assert_eq!(
        (alone.as_str(), probed.as_str()),
        ("75 75 150\n", "75 75 150\n")
    );
    for function in ["tst_name", "tst_launch"] {
        assert_eq!(seen.calls(function, false).len(), 300, "{function}");
        assert_eq!(seen.calls(function, true).len(), 150, "{function}");
    }
}
