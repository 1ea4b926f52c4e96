//! Floating-point operations of an operator by the shapes of its inputs: torch's own
//! estimates (`computeFlops` of `torch/csrc/profiler/util.cpp`).

use super::inputs::{Inputs, size};
use aiprof_model::timeline::{Event, Timeline};

/// Operations of a call; 0: none that torch counts, or too little is known of its inputs.
pub(super) fn of(timeline: &Timeline, event: &Event) -> u64 {
    let name = timeline.name(event.name);
    let Some(estimate) = estimate_of(name) else {
        return 0;
    };
    let Some(inputs) = Inputs::of(timeline, event) else {
        return 0;
    };
    estimate(&inputs).unwrap_or(0)
}

type Estimate = fn(&Inputs) -> Option<u64>;

fn estimate_of(name: &str) -> Option<Estimate> {
    Some(match name {
        "aten::conv2d" => convolution,
        "aten::mm" => |inputs| product(inputs, 0, 1),
        "aten::addmm" => |inputs| product(inputs, 1, 2),
        "aten::bmm" => |inputs| products(inputs, 0, 1),
        "aten::baddbmm" => |inputs| products(inputs, 1, 2),
        "aten::mul" | "aten::add" => |inputs| inputs.shape(0).and_then(size),
        _ => return None,
    })
}

/// Two operations for each number of the left matrix and each column of the right.
pub(super) fn product(inputs: &Inputs, left: usize, right: usize) -> Option<u64> {
    let (left, right) = (inputs.shape(left)?, inputs.shape(right)?);
    let [_, inner] = *left else { return None };
    let [rows, columns] = *right else { return None };
    let fits = inner == rows && inner > 0;
    let columns = u64::try_from(columns).ok().filter(|_| fits)?;
    size(left)?.checked_mul(columns)?.checked_mul(2)
}

/// The same of batches of matrices.
pub(super) fn products(inputs: &Inputs, left: usize, right: usize) -> Option<u64> {
    let (left, right) = (inputs.shape(left)?, inputs.shape(right)?);
    let [batch, _, inner] = *left else {
        return None;
    };
    let [other, rows, columns] = *right else {
        return None;
    };
    let fits = batch == other && inner == rows;
    let columns = u64::try_from(columns).ok().filter(|_| fits)?;
    size(left)?.checked_mul(columns)?.checked_mul(2)
}

fn convolution(inputs: &Inputs) -> Option<u64> {
    let [batch, in_channels, height, width] = *inputs.shape(0)? else {
        return None;
    };
    let [out_channels, _, kernel_height, kernel_width] = *inputs.shape(1)? else {
        return None;
    };
    let (stride, padding, dilation) = (inputs.pair(3)?, inputs.pair(4)?, inputs.pair(5)?);
    let groups = inputs.number(6)?;
    let out = |length: i64, kernel: i64, at: usize| -> Option<i64> {
        let (stride, padding, dilation) = (stride.get(at)?, padding.get(at)?, dilation.get(at)?);
        let reach = dilation.checked_mul(kernel.checked_sub(1)?)?;
        let room = length.checked_add(padding.checked_mul(2)?)?;
        let room = room.checked_sub(reach)?.checked_sub(1)?;
        room.checked_div(*stride)?.checked_add(1)
    };
    let (high, wide) = (out(height, kernel_height, 0)?, out(width, kernel_width, 1)?);
    let factors = [
        2,
        batch,
        high,
        wide,
        in_channels,
        out_channels,
        kernel_height,
        kernel_width,
    ];
    size(&factors)?.checked_div(u64::try_from(groups).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(shapes: &str, values: &str) -> Inputs {
        Inputs::parse([Some(shapes), None, None, Some(values)]).unwrap()
    }

    /// `flops` of `key_averages()` of PyTorch 2.11, for one call each.
    #[test]
    fn torch_counts_as_many() {
        let convolved = inputs(
            "[[64, 3, 32, 32], [16, 3, 3, 3], [16], [], [], [], []]",
            r#"["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "1"]"#,
        );
        assert_eq!(convolution(&convolved), Some(49_766_400));
        let added = inputs("[[256], [64, 14400], [14400, 256], [], []]", "[]");
        assert_eq!(product(&added, 1, 2), Some(471_859_200));
        let plain = inputs("[[64, 10], [10, 256]]", "[]");
        assert_eq!(product(&plain, 0, 1), Some(327_680));
    }

    /// By PyTorch's formula, worked out by hand: three rows of six results.
    #[test]
    fn height_and_width_have_a_stride_a_padding_and_a_dilation_each() {
        let convolved = inputs(
            "[[1, 1, 8, 8], [1, 1, 3, 3], [1], [], [], [], []]",
            r#"["", "", "", "[2, 1]", "[0, 1]", "[1, 2]", "1"]"#,
        );
        assert_eq!(convolution(&convolved), Some(2 * 3 * 6 * 3 * 3));
    }

    #[test]
    fn what_does_not_fit_counts_nothing() {
        let wrong = inputs("[[64, 10], [11, 256]]", "[]");
        assert_eq!(product(&wrong, 0, 1), None);
        let huge = inputs("[[4000000000, 4000000000], [4000000000, 7]]", "[]");
        assert_eq!(product(&huge, 0, 1), None);
        let backwards = inputs(
            "[[1, 1, 1, 1], [1, 1, 9, 9]]",
            r#"["", "", "", "[0, 0]", "[0, 0]", "[1, 1]", "0"]"#,
        );
        assert_eq!(convolution(&backwards), None);
    }
}
