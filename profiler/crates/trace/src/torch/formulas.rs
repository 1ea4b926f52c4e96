//! What operators compute and move, by the shapes and types of their inputs.
//!
//! Each formula follows from the operator's definition: a function of one or two numbers is one
//! operation, each input is read once, and each output is written once. Products of matrices have
//! the operations of [`flops`]. Attention has those of its products of matrices, without softmax.

use super::flops;
use super::inputs::{ElementType, Inputs, Tensor, size};

/// What a call of an operator computes and moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OperatorWork {
    /// Floating-point operations.
    pub(super) flops: u64,
    /// Bytes read and written; `None`: a type is not known.
    pub(super) bytes: Option<u64>,
    /// It multiplies matrices.
    pub(super) is_matrix: bool,
    /// Type of its main input.
    pub(super) element: Option<ElementType>,
}

/// Whose order of dimensions, and whose rule of causal masks, an attention has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttentionStyle {
    /// Batch, heads, length, width. The first query sees the first key.
    Aten,
    /// Batch, length, heads, width. The last query sees all keys.
    FlashAttention,
}

/// How the operations and bytes of an operator are counted. Numbers are places of inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Formula {
    /// A product of two matrices.
    Product,
    /// The same, added to the first input.
    AddedProduct,
    /// Products of as many matrices.
    Batch,
    /// The same, added to the first input.
    AddedBatch,
    /// A product with the transposed second matrix, and what is added as third.
    Linear,
    /// A product of scaled matrices of 8 bits.
    Scaled,
    /// Attention: what its dimensions are, where it is causal.
    Attention(AttentionStyle, usize),
    /// The same, backward.
    AttentionBackward(AttentionStyle, usize),
    /// A convolution, also transposed.
    Convolution,
    /// The same, backward.
    ConvolutionBackward,
    /// Something with each number of the output: how many of the first inputs are read, operations
    /// for a number, further inputs with the operations for a number that each adds.
    Each(usize, u64, &'static [(usize, u64)]),
    /// Something with each number of the first input, that leaves fewer: operations for a number,
    /// where the dimensions are that it leaves out.
    Reduce(u64, usize),
    /// The second input is written over the first.
    Copy,
    /// A value is written over the first input.
    Fill,
}

use AttentionStyle::{Aten, FlashAttention};
use Formula as F;

/// Operators that have a formula. Names without `::` are of `aten::`, and stand for the variant
/// with `_` that changes its first input, too.
const ROWS: [(&str, Formula); 31] = [
    ("mm", F::Product),
    ("addmm", F::AddedProduct),
    ("bmm", F::Batch),
    ("baddbmm", F::AddedBatch),
    ("linear", F::Linear),
    ("_scaled_mm", F::Scaled),
    ("_scaled_dot_product_flash_attention", F::Attention(Aten, 4)),
    (
        "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention",
        F::Attention(Aten, 6),
    ),
    (
        "_scaled_dot_product_fused_attention_overrideable",
        F::Attention(Aten, 5),
    ),
    (
        "flash_attn::_flash_attn_forward",
        F::Attention(FlashAttention, 5),
    ),
    (
        "_scaled_dot_product_flash_attention_backward \
         _scaled_dot_product_efficient_attention_backward",
        F::AttentionBackward(Aten, 11),
    ),
    (
        "_scaled_dot_product_cudnn_attention_backward",
        F::AttentionBackward(Aten, 14),
    ),
    (
        "_scaled_dot_product_fused_attention_overrideable_backward",
        F::AttentionBackward(Aten, 13),
    ),
    (
        "flash_attn::_flash_attn_backward",
        F::AttentionBackward(FlashAttention, 11),
    ),
    ("convolution", F::Convolution),
    ("convolution_backward", F::ConvolutionBackward),
    (
        "abs ceil clamp clamp_max clamp_min cos cumsum elu erf exp exp2 expm1 floor gelu log log1p \
         log2 mish neg",
        F::Each(1, 1, &[]),
    ),
    (
        "hardswish hardtanh leaky_relu reciprocal relu round rsqrt sigmoid sign silu sin softplus \
         sqrt square tan tanh trunc",
        F::Each(1, 1, &[]),
    ),
    (
        "add atan2 div elu_backward fmod gelu_backward leaky_relu_backward maximum minimum mul pow \
         remainder rsub sigmoid_backward silu_backward sub tanh_backward threshold_backward",
        F::Each(2, 1, &[]),
    ),
    ("addcdiv addcmul lerp", F::Each(3, 3, &[])),
    // Largest, difference, exponential, sum, quotient.
    ("_softmax _log_softmax", F::Each(1, 5, &[])),
    // Product, sum, difference, product.
    (
        "_softmax_backward_data _log_softmax_backward_data",
        F::Each(2, 4, &[]),
    ),
    (
        "amax amin argmax argmin max mean min prod sum",
        F::Reduce(1, 1),
    ),
    ("linalg_vector_norm", F::Reduce(2, 2)),
    // Sums, differences, squares and a quotient; weight and bias.
    ("native_layer_norm", F::Each(1, 5, &[(2, 1), (3, 1)])),
    ("native_group_norm", F::Each(1, 5, &[(1, 1), (2, 1)])),
    ("_fused_rms_norm", F::Each(1, 3, &[(2, 1)])),
    (
        "native_layer_norm_backward",
        F::Each(2, 9, &[(5, 3), (6, 1)]),
    ),
    ("_fused_rms_norm_backward", F::Each(2, 6, &[(4, 3)])),
    ("copy_", F::Copy),
    ("fill_ zero_", F::Fill),
];

/// The formula of an operator.
pub(super) fn formula(name: &str) -> Option<Formula> {
    let known = |name: &str| {
        let mut rows = ROWS.iter();
        rows.find(|(names, _)| names.split(' ').any(|one| one == name))
            .map(|(_, formula)| *formula)
    };
    let name = match name.strip_prefix("aten::") {
        Some(name) => name,
        None if name.contains("::") => name,
        None => return None,
    };
    known(name).or_else(|| known(name.strip_suffix('_')?))
}

impl Formula {
    /// What a call computes and moves; `None`: too little is known of its inputs.
    pub(super) fn of(self, inputs: &Inputs) -> Option<OperatorWork> {
        let matrices = |flops: Option<u64>, first: usize, read: &[usize], out: Option<_>| {
            matrices(inputs, flops?, first, read, out)
        };
        match self {
            F::Product => matrices(flops::product(inputs, 0, 1), 0, &[0, 1], None),
            F::AddedProduct => matrices(flops::product(inputs, 1, 2), 1, &[0, 1, 2], None),
            F::Batch => matrices(flops::products(inputs, 0, 1), 0, &[0, 1], None),
            F::AddedBatch => matrices(flops::products(inputs, 1, 2), 1, &[0, 1, 2], None),
            F::Linear => matrices(linear(inputs), 0, &[0, 1, 2], None),
            F::Scaled => {
                let out = inputs.number(6).and_then(ElementType::numbered);
                let flops = flops::product(inputs, 0, 1);
                matrices(flops, 0, &[0, 1, 2, 3, 4], out)
            }
            F::Attention(style, causal) => {
                let shape = AttentionShape::of(inputs, 0, style)?;
                let flops = shape.flops(inputs.is_true(causal), [1, 1])?;
                Some(matrix(inputs, 0, flops, shape.bytes(inputs)))
            }
            // Scores again, then the gradients of values, scores, queries and keys.
            F::AttentionBackward(style, causal) => {
                let shape = AttentionShape::of(inputs, 1, style)?;
                let flops = shape.flops(inputs.is_true(causal), [3, 2])?;
                Some(matrix(inputs, 1, flops, backward_bytes(inputs)))
            }
            F::Convolution => convolution(inputs),
            F::ConvolutionBackward => convolution_backward(inputs),
            F::Each(reads, flops, more) => each(inputs, reads, flops, more),
            F::Reduce(flops, dims) => reduce(inputs, flops, dims),
            F::Copy => {
                let (to, from) = (inputs.tensor(0)?, inputs.tensor(1)?);
                let bytes = from.bytes.checked_add(to.full_bytes()?);
                Some(plain(to.element, 0, bytes))
            }
            F::Fill => {
                let to = inputs.tensor(0)?;
                Some(plain(to.element, 0, to.full_bytes()))
            }
        }
    }

    /// Whether a call of an attention reads a prompt (`Some(false)`), or goes on by one token
    /// (`Some(true)`).
    pub(super) fn is_decode(self, inputs: &Inputs) -> Option<bool> {
        let F::Attention(style, causal) = self else {
            return None;
        };
        let shape = AttentionShape::of(inputs, 0, style)?;
        let mask = inputs.tensor(3).is_some_and(|mask| mask.shape.len() > 1);
        let is_causal = mask || inputs.is_true(causal) == Some(true);
        match (shape.queries, shape.keys) {
            (1, 2..) => Some(true),
            (2.., _) if is_causal => Some(false),
            _ => None,
        }
    }

    /// Whether it is an attention, forward.
    pub(super) fn is_attention(self) -> bool {
        matches!(self, F::Attention(..))
    }
}

fn matrix(inputs: &Inputs, first: usize, flops: u64, bytes: Option<u64>) -> OperatorWork {
    let element = inputs.tensor(first).map(|tensor| tensor.element);
    OperatorWork {
        flops,
        bytes,
        is_matrix: true,
        element,
    }
}

fn plain(element: ElementType, flops: u64, bytes: Option<u64>) -> OperatorWork {
    OperatorWork {
        flops: if element.is_float() { flops } else { 0 },
        bytes,
        is_matrix: false,
        element: Some(element),
    }
}

/// Bytes of those of these inputs that are tensors; `None`: the type of one is not known.
fn read_bytes(inputs: &Inputs, read: &[usize]) -> Option<u64> {
    let mut sum: u64 = 0;
    for index in read {
        match inputs.tensor(*index) {
            Some(tensor) => sum = sum.checked_add(tensor.bytes)?,
            None if inputs.shape(*index).is_some() => return None,
            None => {}
        }
    }
    Some(sum)
}

/// Products of matrices, the left of which is input `first`. Each result has two operations for
/// each number in a row of the left.
fn matrices(
    inputs: &Inputs,
    flops: u64,
    first: usize,
    read: &[usize],
    out: Option<ElementType>,
) -> Option<OperatorWork> {
    let inner = u64::try_from(*inputs.shape(first)?.last()?).ok()?;
    let results = flops.checked_div(inner.checked_mul(2)?)?;
    let bytes = || {
        let out = out.or_else(|| Some(inputs.tensor(first)?.element))?;
        read_bytes(inputs, read)?.checked_add(results.checked_mul(out.bytes())?)
    };
    Some(matrix(inputs, first, flops, bytes()))
}

fn linear(inputs: &Inputs) -> Option<u64> {
    let (left, right) = (inputs.shape(0)?, inputs.shape(1)?);
    let [columns, inner] = *right else {
        return None;
    };
    let columns = u64::try_from(columns).ok()?;
    let fits = left.last() == Some(&inner);
    size(left)?
        .checked_mul(columns)?
        .checked_mul(2)
        .filter(|_| fits)
}

/// Lengths of an attention.
#[derive(Clone, Copy)]
struct AttentionShape {
    style: AttentionStyle,
    batch: u64,
    heads: u64,
    queries: u64,
    keys: u64,
    /// Widths of keys and values.
    widths: [u64; 2],
}

impl AttentionShape {
    /// `query`: its place; key and value are behind it.
    fn of(inputs: &Inputs, query: usize, style: AttentionStyle) -> Option<Self> {
        let lengths = |place: usize| -> Option<[u64; 4]> {
            let shape: [i64; 4] = inputs.shape(place)?.try_into().ok()?;
            let [a, b, c, d] = shape.map(u64::try_from);
            let [a, b, c, d] = [a.ok()?, b.ok()?, c.ok()?, d.ok()?];
            Some(match style {
                Aten => [a, b, c, d],
                FlashAttention => [a, c, b, d],
            })
        };
        let [batch, heads, queries, width] = lengths(query)?;
        let [_, _, keys, _] = lengths(query.checked_add(1)?)?;
        let [.., value_width] = lengths(query.checked_add(2)?)?;
        Some(Self {
            style,
            batch,
            heads,
            queries,
            keys,
            widths: [width, value_width],
        })
    }

    /// Pairs of a query and a key that it sees.
    fn pairs(&self, is_causal: bool) -> Option<u64> {
        let (queries, keys) = (self.queries, self.keys);
        if !is_causal {
            return queries.checked_mul(keys);
        }
        let least = queries.min(keys);
        let triangle = least.checked_mul(least.checked_add(1)?)? / 2;
        let rest = match self.style {
            Aten => (queries - least).checked_mul(keys)?,
            FlashAttention => (keys - least).checked_mul(queries)?,
        };
        triangle.checked_add(rest)
    }

    /// Operations of as many products with the widths of keys and of values.
    fn flops(&self, is_causal: Option<bool>, [keys, values]: [u64; 2]) -> Option<u64> {
        let [width, value_width] = self.widths;
        let widths = width
            .checked_mul(keys)?
            .checked_add(value_width.checked_mul(values)?)?;
        let pairs = self.pairs(is_causal == Some(true))?;
        let all = self.batch.checked_mul(self.heads)?.checked_mul(pairs)?;
        all.checked_mul(widths)?.checked_mul(2)
    }

    /// Queries, keys, values, a mask if there is one, and the result.
    fn bytes(&self, inputs: &Inputs) -> Option<u64> {
        let [_, width] = self.widths;
        let results = self.batch.checked_mul(self.heads)?;
        let results = results.checked_mul(self.queries)?.checked_mul(width)?;
        let results = results.checked_mul(inputs.tensor(0)?.element.bytes())?;
        read_bytes(inputs, &[0, 1, 2, 3])?.checked_add(results)
    }
}

/// The result and its gradient, queries, keys, values, and the gradients of these three.
fn backward_bytes(inputs: &Inputs) -> Option<u64> {
    let mut sum = inputs.tensor(0)?.bytes.checked_mul(2)?;
    for place in 1..=3 {
        let tensor = inputs.tensor(place)?;
        sum = sum
            .checked_add(tensor.bytes)?
            .checked_add(tensor.full_bytes()?)?;
    }
    Some(sum)
}

/// Operations of a convolution for each number of its result, or of its input if it is transposed:
/// two for each weight of a channel. The weights have the channels of one group only.
fn per_number(weights: &[i64]) -> Option<u64> {
    size(weights.get(1..)?)?.checked_mul(2)
}

fn convolution(inputs: &Inputs) -> Option<OperatorWork> {
    let (input, weights) = (inputs.shape(0)?, inputs.shape(1)?);
    let is_transposed = inputs.is_true(6)?;
    let count = input.len().checked_sub(2)?;
    let list = |place: usize| {
        let list = inputs.list(place)?;
        match list[..] {
            [one] => Some(vec![one; count]),
            _ => Some(list),
        }
    };
    let (strides, paddings, dilations) = (list(3)?, list(4)?, list(5)?);
    let more = if is_transposed { list(7)? } else { Vec::new() };
    let channels = match is_transposed {
        true => weights.get(1)?.checked_mul(inputs.number(8)?)?,
        false => *weights.first()?,
    };
    let mut out = vec![*input.first()?, channels];
    for at in 0..count {
        let length = *input.get(at.checked_add(2)?)?;
        let kernel = *weights.get(at.checked_add(2)?)?;
        let (stride, dilation) = (*strides.get(at)?, *dilations.get(at)?);
        let padding = paddings.get(at)?.checked_mul(2)?;
        let reach = dilation.checked_mul(kernel.checked_sub(1)?)?;
        let length = match is_transposed {
            true => {
                let length = length.checked_sub(1)?.checked_mul(stride)?;
                let length = length.checked_sub(padding)?.checked_add(reach)?;
                length.checked_add(*more.get(at)?)?
            }
            false => {
                let room = length.checked_add(padding)?.checked_sub(reach)?;
                room.checked_sub(1)?.checked_div(stride)?
            }
        };
        out.push(length.checked_add(1)?);
    }
    let results = size(&out)?;
    let numbers = if is_transposed { size(input)? } else { results };
    let flops = numbers.checked_mul(per_number(weights)?)?;
    let bytes = || {
        let out = results.checked_mul(inputs.tensor(0)?.element.bytes())?;
        read_bytes(inputs, &[0, 1, 2])?.checked_add(out)
    };
    Some(matrix(inputs, 0, flops, bytes()))
}

/// The gradients of input and weights, if they are wanted: as many operations as forward, each.
fn convolution_backward(inputs: &Inputs) -> Option<OperatorWork> {
    let is_transposed = inputs.is_true(7)?;
    let numbers = size(inputs.shape(usize::from(is_transposed))?)?;
    let once = numbers.checked_mul(per_number(inputs.shape(2)?)?)?;
    let wanted = inputs.value(10)?.trim_matches(['[', ']']).split(", ");
    let mut wanted = wanted.map(|one| one == "True");
    let wanted = [wanted.next()?, wanted.next()?];
    let [of_input, of_weights] = wanted.map(u64::from);
    let bytes = || {
        let input = inputs.tensor(1)?.full_bytes()?.checked_mul(of_input)?;
        let weights = inputs.tensor(2)?.full_bytes()?.checked_mul(of_weights)?;
        let read = read_bytes(inputs, &[0, 1, 2])?;
        read.checked_add(input)?.checked_add(weights)
    };
    let flops = once.checked_mul(of_input.checked_add(of_weights)?)?;
    Some(matrix(inputs, 1, flops, bytes()))
}

/// The lengths of what shapes give together: each is stretched where its length is 1.
fn broadcast(tensors: &[Tensor<'_>]) -> Vec<i64> {
    let longest = tensors.iter().map(|one| one.shape.len()).max();
    let mut out = vec![1; longest.unwrap_or(0)];
    for tensor in tensors {
        let lengths = out.iter_mut().rev().zip(tensor.shape.iter().rev());
        for (length, own) in lengths.filter(|(_, own)| **own != 1) {
            *length = *own;
        }
    }
    out
}

/// Something with each number of the output, which has the widest type of the inputs.
fn each(inputs: &Inputs, reads: usize, flops: u64, more: &[(usize, u64)]) -> Option<OperatorWork> {
    let mut tensors = Vec::new();
    for at in 0..reads {
        match inputs.tensor(at) {
            Some(tensor) => tensors.push(tensor),
            None if inputs.shape(at).is_some() => return None,
            None => {}
        }
    }
    let first = tensors.first()?;
    // Single numbers do not change the type of the others.
    let long = tensors.iter().filter(|one| !one.shape.is_empty());
    let widest = long.max_by_key(|one| (one.element.is_float(), one.element.bytes()));
    let element = widest.unwrap_or(first).element;
    let results = size(&broadcast(&tensors))?;
    let (mut flops, mut bytes) = (flops, results.checked_mul(element.bytes()));
    let more = more.iter().filter_map(|(place, flops)| {
        let tensor = inputs.tensor(*place)?;
        Some((tensor, *flops))
    });
    for (tensor, own) in more.chain(tensors.iter().map(|one| (*one, 0))) {
        flops = flops.checked_add(own)?;
        bytes = bytes.and_then(|bytes| bytes.checked_add(tensor.bytes));
    }
    Some(plain(element, results.checked_mul(flops)?, bytes))
}

/// Something with each number of the first input. With a tensor as second it is of both: `max`.
fn reduce(inputs: &Inputs, flops: u64, dims: usize) -> Option<OperatorWork> {
    if inputs.shape(1).is_some() {
        return each(inputs, 2, flops, &[]);
    }
    let input = inputs.tensor(0)?;
    let one = |number: i64| vec![number];
    let left_out = inputs.list(dims).or_else(|| inputs.number(dims).map(one));
    let length = i64::try_from(input.shape.len()).ok()?;
    let is_left = |at: i64| {
        let mut all = left_out.iter().flatten();
        all.any(|dim| *dim == at || dim.checked_add(length) == Some(at))
    };
    let kept = (0i64..).zip(input.shape).filter(|(at, _)| !is_left(*at));
    let kept: Vec<i64> = kept.map(|(_, length)| *length).collect();
    let results = match left_out.as_deref() {
        None | Some([]) => 1,
        Some(_) => size(&kept)?,
    };
    let bytes = || {
        let out = results.checked_mul(input.element.bytes())?;
        input.bytes.checked_add(out)
    };
    let is_known = inputs.has_values() || input.shape.len() == 1;
    let bytes = bytes().filter(|_| is_known);
    Some(plain(
        input.element,
        input.numbers.checked_mul(flops)?,
        bytes,
    ))
}

#[cfg(test)]
#[path = "formulas_tests.rs"]
mod tests;
