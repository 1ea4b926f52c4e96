//! Random numbers that follow from a seed: xorshift64* (Vigna, "An experimental
//! exploration of Marsaglia's xorshift generators, scrambled", 2016).

/// A generator. The same seed gives the same numbers everywhere.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator; neighbouring seeds give unrelated numbers.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        // One step of splitmix64 spreads small seeds and never stays 0.
        let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self((z ^ (z >> 31)).max(1))
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number in 0..1.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A number in `low..high`.
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// A number in `-size..size`.
    pub fn jitter(&mut self, size: f64) -> f64 {
        self.between(-size, size)
    }

    /// A whole number below `end`, which must not be 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.unit() * end as f64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_from_the_seed_and_fill_their_range() {
        let draw = |seed| {
            let mut rng = Rng::new(seed);
            (0..1000).map(|_| rng.unit()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        let all = draw(0);
        let mean = all.iter().sum::<f64>() / 1000.0;
        assert!((mean - 0.5).abs() < 0.05, "{mean}");
        assert!(all.iter().all(|x| (0.0..1.0).contains(x)));
    }
}
