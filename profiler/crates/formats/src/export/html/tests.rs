use super::*;
use aiprof_trace::analyze::plots::Series;
use aiprof_trace::analyze::report::{Active, Input, Kernel, Lengths};

fn page(report: &Report) -> String {
    let mut out = Vec::new();
    write(report, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn kernel(rank: u32, name: &str, total_us: f64) -> Kernel {
    Kernel {
        rank,
        device: rank.to_string(),
        name: name.to_owned(),
        percent: 12.5,
        lengths: Lengths {
            calls: 4,
            total_us,
            mean_us: total_us / 4.0,
            median_us: total_us / 4.0,
            min_us: 1.0,
            max_us: total_us,
            deviation_us: 0.25,
        },
        mean_watts: None,
        joules: None,
        utilization_percent: None,
    }
}

fn input(path: &str, is_synthetic: bool) -> Input {
    Input {
        path: path.to_owned(),
        dialect: "flex",
        rank: None,
        events: 7,
        is_synthetic,
        problems: Vec::new(),
    }
}

#[test]
fn base64_and_digest_are_as_others_make_them() {
    // RFC 4648, section 10.
    for (bytes, text) in [
        ("", ""),
        ("f", "Zg=="),
        ("fo", "Zm8="),
        ("foo", "Zm9v"),
        ("foobar", "Zm9vYmFy"),
    ] {
        assert_eq!(base64(bytes.as_bytes()), text);
    }
    // The example of Content Security Policy Level 3, section 8.2 (`openssl dgst` agrees).
    assert_eq!(
        digest("alert('Hello, world.');"),
        "'sha256-qznLcsROx4GACP2dm0UCKCzCG+HiZ1guq6ZZDob/Tng='"
    );
}

#[test]
fn a_page_without_anything_is_whole() {
    let page = page(&Report::default());
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    assert!(page.contains("Nothing stands out."));
    // No section without content, and no link to one.
    assert_eq!(page.matches("<section ").count(), 1);
    assert_eq!(page.matches("<li><a href=\"#").count(), 1);
}

#[test]
fn nothing_is_loaded_from_anywhere() {
    for part in [STYLE, SCRIPT] {
        for way in [
            "@import",
            "url(",
            "fetch(",
            "XMLHttpRequest",
            "import(",
            "innerHTML",
        ] {
            assert!(!part.contains(way), "{way}");
        }
        let addresses = part.matches("http").count();
        assert_eq!(
            addresses,
            part.matches("http://www.w3.org/2000/svg").count()
        );
        // They could end their element.
        assert!(!part.contains("</"));
    }
    assert!(policy().starts_with("default-src 'none';") && !policy().contains("unsafe"));
}

#[test]
fn hostile_text_is_text_wherever_it_stands() {
    let hostile = "</script><img src=x onerror=alert(1)>\u{202e}\"'&\u{2028}";
    let mut report = Report {
        inputs: vec![input(hostile, true)],
        kernels: vec![kernel(0, hostile, 8.0)],
        series: vec![Series {
            name: hostile.to_owned(),
            unit: hostile.to_owned(),
            rank: Some(0),
            readings: 1,
            points: vec![(0.0, 1.0, 1.0, 1.0)],
        }],
        findings: vec![Finding {
            weight: Weight::Error,
            text: hostile.to_owned(),
            evidence: vec![hostile.to_owned()],
            ..Finding::default()
        }],
        ..Report::default()
    };
    report.inputs[0].problems.push(hostile.to_owned());
    let page = page(&report);
    assert!(!page.contains("<img"), "markup");
    assert!(!page.contains(['\u{202e}', '\u{2028}']), "unseen");
    assert_eq!(page.matches("</script>").count(), 2);
    assert!(
        page.contains("&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;\u{27e8}U+202E\u{27e9}")
    );
}

#[test]
fn synthetic_traces_are_labelled() {
    let mut report = Report {
        inputs: vec![input("a.json", false), input("b.json", true)],
        ..Report::default()
    };
    let text = page(&report);
    assert!(text.contains("1 of 2 traces are marked as synthetic"));
    assert!(text.contains("<bdi>yes, synthetic</bdi>"));
    report.inputs.pop();
    assert!(!page(&report).contains("ynthetic.</strong>"));
}

#[test]
fn only_the_longest_of_too_many_kernels_are_shown_and_the_rest_counted() {
    let kernels = (0..2500).map(|n| kernel(n / 1250, &format!("k{n}"), f64::from(n % 1250)));
    let report = Report {
        kernels: kernels.collect(),
        ..Report::default()
    };
    let page = page(&report);
    assert_eq!(page.matches("<tr><td").count(), 2000);
    // 250 of each rank, 0 to 249 us long, of twice 0 + 1 + .. + 1249.
    let percent = 249.0 * 250.0 / (1249.0 * 1250.0) * 100.0;
    assert!(page.contains(&format!(
        "500 more kernels, with {percent:.2} % of the kernel time"
    )));
    assert!(page.contains("<bdi>k250</bdi>") && !page.contains("<bdi>k249</bdi>"));
    assert!(page.contains("<bdi>k1500</bdi>") && !page.contains("<bdi>k1499</bdi>"));
    assert!(page.len() < 2_000_000, "{}", page.len());
}

#[test]
fn the_size_of_plots_is_bounded() {
    let points = (0..1000).map(|n| (f64::from(n) / 3.0, 1.0 / 3.0, 2.0 / 3.0, 1.0));
    let points: Vec<_> = points.collect();
    let series = (0..512).map(|n| Series {
        name: format!("c{n}"),
        unit: String::new(),
        rank: Some(n),
        readings: 1_000_000,
        points: points.clone(),
    });
    let report = Report {
        series: series.collect(),
        series_left_out: 12_345,
        ..Report::default()
    };
    let page = page(&report);
    assert!(page.len() < 6_000_000, "{}", page.len());
    assert!(page.contains("12,345 further counters are not on this page"));
    assert!(page.contains("512 of 512 lines have more readings"));
}

#[test]
fn a_rank_has_its_numbers() {
    let report = Report {
        active: vec![Active {
            rank: 3,
            other_ranks: Vec::new(),
            device: "3".into(),
            kernel_us: 2_500.0,
            busy_us: 2_000.0,
            elapsed_us: 8_000.0,
            busy_percent: 25.0,
        }],
        ..Report::default()
    };
    let page = page(&report);
    for cell in ["25.00", "2.000", "2.500", "8.000"] {
        assert!(page.contains(&format!(">{cell}<")), "{cell}");
    }
    assert!(page.contains("25.0 %"));
}
