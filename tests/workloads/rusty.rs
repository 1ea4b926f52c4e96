//! Generics, a closure, a trait object and a thread, without frame pointers.

use std::hint::black_box;
use std::time::{Duration, Instant};

fn burn(rounds: u64) -> u64 {
    let mut x = rounds | 1;
    for _ in 0..rounds {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x = black_box(x);
    }
    x
}

trait Work {
    fn work(&self, rounds: u64) -> u64;
}

struct Shape<T>(T);

impl Work for Shape<[u8; 4]> {
    #[inline(never)]
    fn work(&self, rounds: u64) -> u64 {
        burn(rounds) + u64::from(self.0[0])
    }
}

#[inline(never)]
fn apply<F: FnOnce(u64) -> u64>(rounds: u64, f: F) -> u64 {
    black_box(f(black_box(rounds))) + 1
}

#[inline(never)]
fn generic<T: Copy + Into<u64>>(worker: &dyn Work, n: T) -> u64 {
    apply(n.into(), |rounds| black_box(worker.work(rounds)) + 1) + 1
}

#[inline(never)]
fn run(seconds: f64) -> u64 {
    let worker: Box<dyn Work> = black_box(Box::new(Shape([1, 2, 3, 4])));
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let mut sum = 0u64;
    while Instant::now() < end {
        sum = sum.wrapping_add(generic(worker.as_ref(), black_box(2_000_000u32)));
    }
    sum
}

fn main() {
    let seconds = std::env::args().nth(1).and_then(|s| s.parse().ok());
    let seconds: f64 = seconds.unwrap_or(1.0);
    println!("pid {}", std::process::id());
    let sum = run(seconds);
    let thread = std::thread::Builder::new()
        .name("rusty-thread".to_owned())
        .spawn(move || run(seconds));
    let more = thread.ok().and_then(|t| t.join().ok());
    black_box((sum, more));
}
