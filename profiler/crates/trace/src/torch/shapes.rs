//! Shapes of an operator's inputs, as torch prints them.

use serde_json::Value;

/// `Input Dims` of a trace as torch's tables have it: a list of shapes, in which lists of
/// tensors are empty. `None`: there is none, or it is no list.
pub(super) fn shown(json: Option<&str>) -> String {
    let lists = json.and_then(|text| serde_json::from_str::<Vec<Value>>(text).ok());
    let shapes = lists.unwrap_or_default();
    let shapes: Vec<String> = shapes.iter().map(shape).collect();
    format!("[{}]", shapes.join(", "))
}

fn shape(value: &Value) -> String {
    let lengths = numbers(value).unwrap_or_default();
    let lengths: Vec<String> = lengths.iter().map(i64::to_string).collect();
    format!("[{}]", lengths.join(", "))
}

/// A list of whole numbers; `None`: it is something else.
pub(super) fn numbers(value: &Value) -> Option<Vec<i64>> {
    value.as_array()?.iter().map(Value::as_i64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pairs of `Input Dims` and `input_shapes` of one profile of PyTorch 2.11.
    #[test]
    fn lists_of_tensors_are_empty() {
        for (dims, expected) in [
            ("[[64,3,32,32],[],[]]", "[[64, 3, 32, 32], [], []]"),
            ("[[[16, 3], [16]], [], []]", "[[], [], []]"),
            ("[]", "[]"),
            ("7", "[]"),
        ] {
            assert_eq!(shown(Some(dims)), expected);
        }
        assert_eq!(shown(None), "[]");
    }
}
