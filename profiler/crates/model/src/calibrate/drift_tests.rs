use super::*;

/// Numbers without a pattern, 0 to 1.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// What a clock shows at a true time: it is ahead by `us` at 0, and more with time.
#[derive(Clone, Copy)]
struct Truth {
    us: f64,
    rate: f64,
}

impl Truth {
    fn shows(self, true_us: f64) -> f64 {
        true_us + self.us + true_us * self.rate
    }
}

/// Messages between neighbours of a chain, both ways, over `length_us`. They take at least
/// 2 us, some far longer.
fn chain(truths: &[Truth], length_us: f64, count: usize) -> Vec<Crossing> {
    let mut noise = Noise(7);
    let mut crossings = Vec::new();
    for n in 0..count {
        let at = (n % (truths.len() - 1), n % (truths.len() - 1) + 1);
        let (from, to) = if noise.next() < 0.5 { at } else { (at.1, at.0) };
        let left = length_us * n as f64 / count as f64;
        let took = 2.0 + 10.0 * noise.next() + if noise.next() < 0.2 { 900.0 } else { 0.0 };
        crossings.push(Crossing {
            from,
            to,
            left_us: truths[from].shows(left),
            arrived_us: truths[to].shows(left + took),
        });
    }
    crossings
}

/// How far aligned clocks are from the first one, at most, and the bound of it.
fn check(truths: &[Truth], found: &AlignedClocks, length_us: f64) -> f64 {
    let mut worst: f64 = 0.0;
    for (truth, line) in truths.iter().zip(&found.lines).skip(1) {
        let line = line.unwrap();
        for at in [0.0, length_us / 3.0, length_us] {
            let shown = truth.shows(at);
            let error = shown + line.shift(shown) - truths[0].shows(at);
            assert!(
                error.abs() <= line.error_us,
                "{error} is not within {}",
                line.error_us
            );
            worst = worst.max(error.abs());
        }
    }
    worst
}

#[test]
fn differences_are_found_within_their_bounds() {
    let truths = [0.0, 1e6, -3e9, 250.0].map(|us| Truth { us, rate: 0.0 });
    let found = align(4, &chain(&truths, 1e6, 2000), &[]);
    assert_eq!(found.contradiction_us, 0.0);
    let worst = check(&truths, &found, 1e6);
    assert!(worst < 3.0, "{worst}");
    for line in found.lines.iter().flatten() {
        assert_eq!(line.rate, 0.0);
        assert!(line.error_us < 40.0, "{}", line.error_us);
    }
}

#[test]
fn drift_is_found_within_its_bounds() {
    let rates = [0.0, 40e-6, -25e-6, 3e-6];
    let truths = rates.map(|rate| Truth {
        us: rate * 1e11,
        rate,
    });
    // A hundred seconds: 4 ms of drift.
    let found = align(4, &chain(&truths, 1e8, 4000), &[]);
    assert!(found.contradiction_us < 0.01, "{found:?}");
    let worst = check(&truths, &found, 1e8);
    assert!(worst < 8.0, "{worst}");
    for line in found.lines.iter().flatten() {
        assert!(line.error_us < 60.0, "{}", line.error_us);
    }
}

#[test]
fn errors_grow_where_no_messages_go() {
    let truths = [0.0, 250e-6].map(|rate| Truth { us: 0.0, rate });
    // The drift is not seen in 10 ms, but a second later it matters.
    let whole = truths.map(|truth| (0.0, truth.shows(1e6)));
    let found = align(2, &chain(&truths, 1e4, 100), &whole);
    let line = found.lines[1].unwrap();
    let shown = truths[1].shows(1e6);
    let error = (shown + line.shift(shown) - 1e6).abs();
    assert!(
        error > line.error_us && error <= line.error_anywhere_us,
        "{error} {line:?}"
    );
}

#[test]
fn one_way_bounds_one_side() {
    let crossings = [1.0, 2.0].map(|at| Crossing {
        from: 0,
        to: 1,
        left_us: at,
        arrived_us: at - 5.0,
    });
    let found = align(3, &crossings, &[]);
    let line = found.lines[1].unwrap();
    assert!((line.shift(0.0) - 5.0).abs() < 1e-6, "{line:?}");
    assert_eq!(line.error_us, f64::INFINITY);
    assert_eq!(found.lines[2], None);
}

#[test]
fn contradictions_are_told() {
    // Both ways arrive 10 us before they left.
    let way = |from, to| Crossing {
        from,
        to,
        left_us: 100.0,
        arrived_us: 90.0,
    };
    let found = align(2, &[way(0, 1), way(1, 0)], &[]);
    assert!((found.contradiction_us - 10.0).abs() < 0.1, "{found:?}");
    // What is no time at all is left out.
    let broken = Crossing {
        left_us: f64::NAN,
        ..way(0, 1)
    };
    assert_eq!(align(2, &[broken, way(5, 9)], &[]).lines[1], None);
}
