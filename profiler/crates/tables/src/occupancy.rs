//! How kernels fill a device: occupancy, blocks, warps, registers, shared memory, and whether they
//! use tensor cores.
//!
//! A name proves tensor cores if it has the instruction. NVIDIA's libraries write its shape
//! (`s16816`, `tensor16x8x16`). CUTLASS writes its class (`tensorop`, `simt`), or the instruction
//! (`SM80_16x8x16_F32F16F16F32_TN`). AMD's Tensile writes the shape of the matrix instruction
//! (`_MI16x16x16x1`). Names as `xmma_gemm`, which TensorBoard takes for tensor cores, prove nothing:
//! those that end in `ffma` use none.

use super::{Cell, Request, Table, TableEntry};
use aiprof_model::timeline::{Event, Sym, Timeline, members};
use aiprof_trace::work::{RankWork, RankedWork, WorkClass};
use rustc_hash::FxHashMap;

/// `--table occupancy`.
pub(super) const ENTRY: TableEntry = TableEntry {
    name: "occupancy",
    about: "kernels: occupancy, blocks and warps per SM, registers, shared memory, tensor cores",
    title: "Occupancy",
    columns: "rank kernel calls time:us share:percent tensor_cores occupancy:percent:1 \
              blocks_per_sm::2 warps_per_sm::2 registers::1 shared_memory:bytes grid block \
              launch_shapes",
    make,
};

/// Whether a kernel uses tensor cores, or AMD's matrix cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TensorCores {
    Yes,
    No,
    Unknown,
}

impl TensorCores {
    const ALL: [Self; 3] = [Self::Yes, Self::No, Self::Unknown];

    fn word(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::No => "no",
            Self::Unknown => "unknown",
        }
    }

    /// By a kernel's name and purpose.
    pub(super) fn of(name: &str, class: WorkClass) -> Self {
        let small = name.to_ascii_lowercase();
        let has = |all: &[&str]| all.iter().any(|text| small.contains(text));
        let is_tensor = has(&TENSOR) || has_shape(&small);
        match class {
            WorkClass::Communication => Self::No,
            _ if is_tensor => Self::Yes,
            _ if has(&PLAIN) => Self::No,
            _ => Self::Unknown,
        }
    }
}

/// Instructions and classes of tensor cores.
const TENSOR: [&str; 8] = [
    "tensorop", "hmma", "wmma", "gmma", "tmaumma", "utcmma", "tcgen05", "mfma",
];
/// Instructions of other cores, and what multiplies no matrices.
const PLAIN: [&str; 9] = [
    "ffma",
    "simt",
    "sgemm",
    "scudnn",
    "elementwise_kernel",
    "reduce_kernel",
    "multi_tensor_apply",
    "catarraybatchedcopy",
    "splitkreduce",
];
/// Shapes of NVIDIA's instructions, which stand behind the letter of a type: `s16816gemm`.
const SHAPES: [&str; 6] = ["884", "1688", "8816", "16816", "16832", "8832"];
/// What stands before a shape that is written as `16x8x16`.
const BEFORE_SHAPE: [&str; 6] = ["_tensor", "_mi", "sm70_", "sm75_", "sm80_", "sm90_"];

/// Whether a name in small letters has the shape of a matrix instruction.
fn has_shape(name: &str) -> bool {
    let is_short = |shape: &&'static str| {
        name.match_indices(*shape).any(|(at, _)| {
            let before = name.get(..at).and_then(|text| text.chars().next_back());
            let behind = name.get(at + shape.len()..);
            let behind = behind.and_then(|text| text.chars().next());
            before.is_some_and(|c| "hsdcib".contains(c))
                && behind.is_none_or(|c| !c.is_ascii_digit())
        })
    };
    let is_long = |before: &&'static str| {
        let mut places = name.match_indices(*before);
        places.any(|(at, _)| name.get(at + before.len()..).is_some_and(is_product))
    };
    SHAPES.iter().any(is_short) || BEFORE_SHAPE.iter().any(is_long)
}

/// Whether a text begins with three numbers with `x` between: `16x8x16`.
fn is_product(text: &str) -> bool {
    let mut parts = text.splitn(3, 'x');
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|c| c.is_ascii_digit());
    parts.next().is_some_and(is_number)
        && parts.next().is_some_and(is_number)
        && parts
            .next()
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// What is measured of a kernel.
#[derive(Clone, Copy)]
enum Measured {
    Occupancy,
    Blocks,
    Warps,
    Registers,
    Shared,
}

impl Measured {
    const COUNT: usize = Self::Shared as usize + 1;

    /// By the argument's name: Kineto's, and aiprof's own.
    fn of(key: &str) -> Option<Self> {
        Some(match key {
            "est. achieved occupancy %" => Self::Occupancy,
            "blocks per SM" => Self::Blocks,
            "warps per SM" => Self::Warps,
            "registers per thread" | "registers" => Self::Registers,
            "shared memory" | "slm_bytes" => Self::Shared,
            _ => return None,
        })
    }
}

/// A number, weighted by the time for which it held.
#[derive(Clone, Copy, Default)]
struct Weighted {
    sum: f64,
    us: f64,
}

impl Weighted {
    fn mean(self) -> Option<f64> {
        (self.us > 0.0).then(|| self.sum / self.us)
    }
}

/// Grid and block, as JSON.
type LaunchShape<'t> = (&'t str, &'t str);

/// All runs of a kernel.
#[derive(Default)]
struct KernelFill<'t> {
    calls: u64,
    us: f64,
    measured: [Weighted; Measured::COUNT],
    /// Time of each launch shape, microseconds.
    shapes: FxHashMap<LaunchShape<'t>, f64>,
}

impl<'t> KernelFill<'t> {
    fn add(&mut self, timeline: &'t Timeline, event: &Event, us: f64) {
        self.calls += 1;
        self.us += us;
        let (mut grid, mut block) = ("", "");
        for (key, value) in members(timeline.texts.get(event.args)) {
            match key {
                "grid" | "groups" => grid = value,
                "block" | "local" => block = value,
                _ => {}
            }
            let number = || value.trim_matches('"').parse::<f64>().ok();
            if let Some(at) = Measured::of(key)
                && let Some(number) = number().filter(|number| number.is_finite())
                && let Some(measured) = self.measured.get_mut(at as usize)
            {
                measured.sum += number * us;
                measured.us += us;
            }
        }
        if !grid.is_empty() || !block.is_empty() {
            *self.shapes.entry((grid, block)).or_default() += us;
        }
    }

    fn mean(&self, of: Measured) -> Option<f64> {
        self.measured.get(of as usize)?.mean()
    }

    /// The launch shape that took most time.
    fn shape(&self) -> Option<LaunchShape<'t>> {
        let most = self.shapes.iter().max_by(|a, b| {
            let time = a.1.total_cmp(b.1);
            time.then_with(|| b.0.cmp(a.0))
        });
        most.map(|(shape, _)| *shape)
    }
}

/// `450 x 1 x 1` of `[450,1,1]`.
fn size(json: &str) -> String {
    let numbers = json.split(|c: char| !c.is_ascii_digit());
    let numbers: Vec<&str> = numbers.filter(|text| !text.is_empty()).take(3).collect();
    numbers.join(" x ")
}

fn make(request: &Request<'_>) -> Vec<Table> {
    let timeline = request.timeline;
    let (mut rows, mut sums) = (Vec::new(), Vec::new());
    for rank in &request.index().ranks {
        of_rank(timeline, rank, &mut rows, &mut sums);
    }
    let is_known = |row: &Vec<Cell>| row.iter().skip(6).any(|cell| *cell != Cell::None);
    let notes = match rows.is_empty() || rows.iter().any(is_known) {
        true => vec!["occupancy to shared memory: means, weighted by time".to_owned()],
        false => vec!["the trace has only names and times of kernels".to_owned()],
    };
    vec![
        ENTRY.noted(rows, notes),
        Table::of(
            "tensor-cores",
            "Time of kernels by their use of tensor cores",
            "rank tensor_cores kernels calls time:us share:percent",
            sums,
        ),
    ]
}

fn of_rank(
    timeline: &Timeline,
    rank: &RankWork,
    rows: &mut Vec<Vec<Cell>>,
    sums: &mut Vec<Vec<Cell>>,
) {
    let mut kernels: FxHashMap<(Sym, WorkClass), KernelFill<'_>> = FxHashMap::default();
    let is_kernel = |work: &&RankedWork| work.class != WorkClass::Copy;
    for work in rank.work.iter().filter(is_kernel) {
        if let Some(event) = timeline.events.get(work.event as usize) {
            let key = (event.original_name(), work.class);
            kernels
                .entry(key)
                .or_default()
                .add(timeline, event, work.us());
        }
    }
    let all: f64 = kernels.values().map(|kernel| kernel.us).sum();
    let share = |us: f64| (all > 0.0).then(|| 100.0 * us / all);
    let uses = |(name, class): (Sym, WorkClass)| TensorCores::of(timeline.name(name), class);
    let mut kernels: Vec<_> = kernels.into_iter().collect();
    kernels.sort_by(|a, b| b.1.us.total_cmp(&a.1.us).then(a.0.cmp(&b.0)));
    for one in TensorCores::ALL {
        let those = || kernels.iter().filter(|(key, _)| uses(*key) == one);
        let us: f64 = those().map(|(_, kernel)| kernel.us).sum();
        if those().next().is_some() {
            let calls: u64 = those().map(|(_, kernel)| kernel.calls).sum();
            sums.push(vec![
                rank.rank.into(),
                one.word().into(),
                those().count().into(),
                calls.into(),
                us.into(),
                share(us).into(),
            ]);
        }
    }
    rows.extend(kernels.iter().map(|(key, kernel)| {
        let shape = kernel.shape();
        vec![
            rank.rank.into(),
            timeline.name(key.0).into(),
            kernel.calls.into(),
            kernel.us.into(),
            share(kernel.us).into(),
            uses(*key).word().into(),
            kernel.mean(Measured::Occupancy).into(),
            kernel.mean(Measured::Blocks).into(),
            kernel.mean(Measured::Warps).into(),
            kernel.mean(Measured::Registers).into(),
            kernel.mean(Measured::Shared).into(),
            shape.map(|(grid, _)| size(grid)).into(),
            shape.map(|(_, block)| size(block)).into(),
            shape.map(|_| kernel.shapes.len()).into(),
        ]
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_model::timeline::Dialect;
    use aiprof_testkit::scene::{self, Slice};
    use aiprof_trace::work::WorkIndex;

    /// Names of traces of V100, A100, H100, H200 and MI300. What each uses is in the names.
    #[test]
    fn names_prove_tensor_cores_or_not() {
        let of = |name| TensorCores::of(name, WorkClass::Compute);
        for name in [
            "volta_fp16_h884gemm_fp16_128x128_ldg8_f2f_nn",
            "turing_fp16_s1688cudnn_fp16_128x128_ldg8_relu_f2f_exp_small_nhwc_tn_v1",
            "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_tn",
            "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_16x6_nt_align4>(Params)",
            "sm80_xmma_fprop_implicit_gemm_tf32f32_tilesize128x128x16_g1_tensor16x8x8_kernel",
            "kernel<cute::MMA_Atom<cute::SM80_16x8x16_F32BF16BF16F32_TN>>",
            "cutlass::gemm::MainloopSm90TmaGmmaWarpSpecialized<4>",
            "Cijk_Ailk_Bljk_HHS_BH_MT128x128x32_MI32x32x8x1_SE_1LDSB0",
        ] {
            assert_eq!(of(name), TensorCores::Yes, "{name}");
        }
        for name in [
            "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_ffma_kernel",
            "volta_sgemm_64x64_nt",
            "cutlass_80_simt_sgemm_128x64_8x5_nn_align1",
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add>",
        ] {
            assert_eq!(of(name), TensorCores::No, "{name}");
        }
        for name in [
            "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n",
            "nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNT",
            "triton_poi_fused_add_16816",
            "summary_of_gamma",
            "Cijk_Ailk_Bljk_SB_MT64x64x8_SE",
            "",
        ] {
            assert_eq!(of(name), TensorCores::Unknown, "{name}");
        }
        let nccl = TensorCores::of("nccl", WorkClass::Communication);
        assert_eq!(nccl, TensorCores::No);
    }

    /// Two runs of 10 and 30 us with 20 and 60 percent, a third without numbers.
    #[test]
    fn numbers_are_weighted_by_time() {
        let mut timeline = scene::empty(Dialect::Torch);
        let mut add = |ts: f64, dur: f64, args: &str| {
            let slice = Slice {
                name: "volta_sgemm_64x64_nt",
                cat: "kernel",
                ts,
                dur,
                args,
                ..Slice::default()
            };
            scene::add(&mut timeline, &slice);
        };
        let args = |percent: u32, grid: u32| {
            format!(
                "\"registers per thread\":32,\"shared memory\":1024,\"blocks per SM\":0.5,\
                 \"warps per SM\":\"2.0\",\"grid\":[{grid},1,1],\"block\":[128,1,1],\
                 \"est. achieved occupancy %\":{percent}"
            )
        };
        add(0.0, 10.0, &args(20, 7));
        add(20.0, 30.0, &args(60, 9));
        add(60.0, 60.0, "\"stream\":7");
        let index = WorkIndex::new(&timeline);
        let (mut rows, mut sums) = (Vec::new(), Vec::new());
        of_rank(&timeline, &index.ranks[0], &mut rows, &mut sums);
        let wanted = vec![
            Cell::Count(0),
            "volta_sgemm_64x64_nt".into(),
            Cell::Count(3),
            Cell::Number(100.0),
            Cell::Number(100.0),
            "no".into(),
            Cell::Number(50.0),
            Cell::Number(0.5),
            Cell::Number(2.0),
            Cell::Number(32.0),
            Cell::Number(1024.0),
            "9 x 1 x 1".into(),
            "128 x 1 x 1".into(),
            Cell::Count(2),
        ];
        assert_eq!(rows, [wanted]);
        let sum = vec![
            Cell::Count(0),
            "no".into(),
            Cell::Count(1),
            Cell::Count(3),
            Cell::Number(100.0),
            Cell::Number(100.0),
        ];
        assert_eq!(sums, [sum]);
    }
}
