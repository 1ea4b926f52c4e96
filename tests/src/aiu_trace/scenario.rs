//! What to make.

/// How a collective's messages go round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// 0 to 1 to 2 and so on; the last one sends the result to all others at
    /// once, as the shipped `allreduce_tp4.json` does.
    Chain,
    /// Each to the next, the last to the first, and the other way round.
    Ring,
    /// Children to parents, then parents to children, in a binary tree.
    Tree,
}

/// How long after the end of a send its receive ends, in microseconds.
#[derive(Clone, Copy, Debug)]
pub enum Latency {
    /// Always this.
    Equal(f64),
    /// For each pair of ranks something in this range, both ways the same.
    Symmetric(f64, f64),
    /// For each pair of ranks and each direction something in this range.
    Directed(f64, f64),
}

/// Messages between the ranks at the end of each job.
#[derive(Clone, Copy, Debug)]
pub struct Collectives {
    /// How the messages go.
    pub shape: Shape,
    /// How many such operations each job has.
    pub groups: usize,
    /// How long messages are under way.
    pub latency: Latency,
}

/// Which unit the charge counter counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    /// 12 V, 1/512 of a microampere-second.
    Micro,
    /// The older traces': 12 V, 5.37/512 of a nanoampere-second.
    Nano,
}

impl Charge {
    /// What the counter counts in a microsecond at one watt.
    #[must_use]
    pub fn per_us_and_watt(self) -> f64 {
        match self {
            Self::Micro => 512.0 / 12.0,
            Self::Nano => 1000.0 * 512.0 / 5.37 / 12.0,
        }
    }
}

/// When the host and the device are both observed by a job's events, and how
/// wrongly.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Everything random follows from it.
    pub seed: u64,
    /// How many ranks, each with a device of its own.
    pub ranks: usize,
    /// How many jobs each rank runs; each is a file of its own.
    pub jobs: usize,
    /// How often a job repeats its kernels.
    pub iterations: usize,
    /// How many kernels an iteration has.
    pub kernels: usize,
    /// The device's frequency in MHz, anywhere in this range.
    pub mhz: (f64, f64),
    /// Change of the frequency, in parts per million each second.
    pub drift_ppm_per_s: f64,
    /// A jump of every device's counter: which part of the trace has passed, and
    /// by how many cycles.
    pub step: Option<(f64, i64)>,
    /// The unwrapped counter when the trace begins; `None`: something random.
    pub start_cycles: Option<u64>,
    /// When the trace begins, in microseconds.
    pub start_us: f64,
    /// How long the device rests between jobs, in microseconds.
    pub gap_us: f64,
    /// How long kernels take, in microseconds.
    pub kernel_us: (f64, f64),
    /// How long the device rests between kernels, in microseconds.
    pub pause_us: (f64, f64),
    /// How far the host's times are from the truth, in microseconds, either way.
    pub jitter_us: f64,
    /// How far, beside that, the host's begin of an event is from the truth, in
    /// microseconds, either way: it is the end that the host sees well.
    pub begin_jitter_us: f64,
    /// By how much the host's clock of a rank may differ from rank 0's, in
    /// microseconds, either way.
    pub offset_us: f64,
    /// By how much the device events of a job are shifted: number of the job,
    /// microseconds.
    pub shifts_us: Vec<(usize, f64)>,
    /// Messages between ranks.
    pub collectives: Option<Collectives>,
    /// Whether there is a charge counter, and its unit.
    pub charge: Option<Charge>,
    /// How long before a kernel its preparation begins, in microseconds; more
    /// than the time between kernels makes preparations overlap.
    pub prep_us: (f64, f64),
}

impl Default for Scenario {
    /// One rank, one job of 40 kernels, everything exact.
    fn default() -> Self {
        Self {
            seed: 1,
            ranks: 1,
            jobs: 1,
            iterations: 5,
            kernels: 8,
            mhz: (557.05, 557.05),
            drift_ppm_per_s: 0.0,
            step: None,
            start_cycles: Some(1_000_000_000),
            start_us: 1e9,
            gap_us: 20_000.0,
            kernel_us: (50.0, 600.0),
            pause_us: (20.0, 60.0),
            jitter_us: 0.0,
            begin_jitter_us: 0.0,
            offset_us: 0.0,
            shifts_us: Vec::new(),
            collectives: None,
            charge: Some(Charge::Micro),
            prep_us: (5.0, 15.0),
        }
    }
}
