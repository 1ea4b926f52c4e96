use super::*;

/// What an operator does with these shapes, types and values: operations and bytes.
fn of(name: &str, shapes: &str, types: &str, values: &str) -> Option<(u64, Option<u64>)> {
    let inputs = Inputs::parse([Some(shapes), None, Some(types), Some(values)]);
    let work = formula(name)?.of(&inputs.unwrap())?;
    Some((work.flops, work.bytes))
}

/// JSON of as many types.
fn types(list: &[&str]) -> String {
    serde_json::to_string(list).unwrap()
}

/// Values behind as many inputs that are tensors.
fn values(tensors: usize, list: &[&str]) -> String {
    let mut all = vec![""; tensors];
    all.extend(list);
    serde_json::to_string(&all).unwrap()
}

const HALF: &str = "c10::Half";
const BF16: &str = "c10::BFloat16";

/// 2 M N K operations; each matrix moves once.
#[test]
fn products_of_matrices() {
    let (m, k, n) = (3, 5, 7);
    let work = |batch: u64, more: u64| {
        let numbers = batch * (m * k + k * n + m * n) + more;
        Some((2 * batch * m * k * n, Some(2 * numbers)))
    };
    let two = types(&[HALF, HALF]);
    let three = types(&[HALF, HALF, HALF]);
    assert_eq!(of("aten::mm", "[[3,5],[5,7]]", &two, "[]"), work(1, 0));
    let added = "[[7],[3,5],[5,7],[],[]]";
    assert_eq!(of("aten::addmm", added, &three, "[]"), work(1, n));
    assert_eq!(of("aten::addmm_", added, &three, "[]"), work(1, n));
    assert_eq!(of("aten::bmm", "[[4,3,5],[4,5,7]]", &two, "[]"), work(4, 0));
    let added = "[[4,3,7],[4,3,5],[4,5,7],[],[]]";
    assert_eq!(of("aten::baddbmm", added, &three, "[]"), work(4, 4 * m * n));
    let linear = "[[3,5],[7,5],[7]]";
    assert_eq!(of("aten::linear", linear, &three, "[]"), work(1, n));
    let none = types(&[HALF, HALF, ""]);
    let linear = "[[1,3,5],[7,5],[]]";
    assert_eq!(of("aten::linear", linear, &none, "[]"), work(1, 0));
    // What is not known of types is not known of bytes.
    let flops = Some((2 * m * k * n, None));
    assert_eq!(of("aten::mm", "[[3,5],[5,7]]", "[]", "[]"), flops);
    for wrong in ["[[3,5],[6,7]]", "[[3,0],[0,7]]", "[[3,5]]", "[]", "[7,7]"] {
        assert_eq!(of("aten::mm", wrong, &two, "[]"), None, "{wrong}");
    }
}

/// Two matrices of bytes, two scales of 4 bytes; the result has 2 bytes for a number, or 1.
#[test]
fn products_of_scaled_matrices() {
    let fp8 = "c10::Float8_e4m3fn";
    let types = types(&[fp8, fp8, "float", "float", "", "", "Scalar"]);
    let shapes = "[[16,32],[32,48],[1],[1],[],[],[]]";
    let read = 16 * 32 + 32 * 48 + 2 * 4;
    let out = |bytes: u64| Some((2 * 16 * 32 * 48, Some(read + bytes * 16 * 48)));
    let wanted = values(6, &["15", "True"]);
    assert_eq!(of("aten::_scaled_mm", shapes, &types, &wanted), out(2));
    let wanted = values(6, &["", "True"]);
    assert_eq!(of("aten::_scaled_mm", shapes, &types, &wanted), out(1));
}

/// Two products for each head, with as many results as there are pairs of a query and a key;
/// backward five.
#[test]
fn attention() {
    let name = "aten::_scaled_dot_product_flash_attention";
    let (batch, heads, long, wide) = (2, 8, 6, 16);
    let shapes = "[[2,8,6,16],[2,4,6,16],[2,4,6,16],[],[],[],[]]";
    let three = types(&[BF16, BF16, BF16, "Scalar", "Scalar", "Scalar", "Scalar"]);
    let tensor = |heads: u64| 2 * batch * heads * long * wide;
    let bytes = Some(2 * tensor(heads) + 2 * tensor(heads / 2));
    let flops = |pairs: u64, products: u64| 2 * batch * heads * pairs * wide * products;
    let causal = |is: &str| values(3, &["0.", is, "False", "0.25"]);
    let found = of(name, shapes, &three, &causal("False"));
    assert_eq!(found, Some((flops(36, 2), bytes)));
    // The first query sees one key, the second two, and so on.
    let found = of(name, shapes, &three, &causal("True"));
    assert_eq!(found, Some((flops(1 + 2 + 3 + 4 + 5 + 6, 2), bytes)));
    let found = of(name, shapes, &three, "[]");
    assert_eq!(found, Some((flops(36, 2), bytes)));

    let shapes = "[[2,8,6,16],[2,8,6,16],[2,4,6,16],[2,4,6,16],[2,8,6,16],[2,8,6],[],[]]";
    let four = types(&[BF16, BF16, BF16, BF16, BF16, "float", "", ""]);
    let name = "aten::_scaled_dot_product_flash_attention_backward";
    let found = of(name, shapes, &four, &values(8, &["6", "6", "0.", "True"]));
    let bytes = Some(4 * tensor(heads) + 4 * tensor(heads / 2));
    assert_eq!(found, Some((flops(21, 5), bytes)));
}

/// In PyTorch the first query sees the first key only; in FlashAttention the last query sees all keys.
#[test]
fn causal_attention_of_different_lengths() {
    let pairs = |name: &str, shapes: &str, values: &str| {
        let types = types(&[HALF, HALF, HALF]);
        of(name, shapes, &types, values).map(|(flops, _)| flops / 4)
    };
    let aten = "aten::_scaled_dot_product_efficient_attention";
    let causal = values(3, &["", "True", "0.", "True"]);
    let more_keys = "[[1,1,2,1],[1,1,5,1],[1,1,5,1]]";
    assert_eq!(pairs(aten, more_keys, &causal), Some(1 + 2));
    let more_queries = "[[1,1,5,1],[1,1,2,1],[1,1,2,1]]";
    assert_eq!(pairs(aten, more_queries, &causal), Some(1 + 2 + 2 + 2 + 2));
    let flash = "flash_attn::_flash_attn_forward";
    let causal = values(3, &["0.", "1.", "True"]);
    let more_keys = "[[1,2,1,1],[1,5,1,1],[1,5,1,1]]";
    assert_eq!(pairs(flash, more_keys, &causal), Some(4 + 5));
    let more_queries = "[[1,5,1,1],[1,2,1,1],[1,2,1,1]]";
    assert_eq!(pairs(flash, more_queries, &causal), Some(1 + 2));
    let one = "[[1,1,1,1],[1,9,1,1],[1,9,1,1]]";
    assert_eq!(pairs(flash, one, &causal), Some(9));
}

#[test]
fn queries_show_prompts_and_tokens() {
    let is_decode = |name: &str, queries: u32, mask: &str, causal: &str| {
        let shapes = format!("[[1,8,{queries},64],[1,8,9,64],[1,8,9,64],{mask}]");
        let types = types(&[HALF, HALF, HALF, HALF]);
        let values = values(3, &["", "True", "0.", causal]);
        let inputs = Inputs::parse([Some(&shapes), None, Some(&types), Some(&values)]);
        formula(name).unwrap().is_decode(&inputs.unwrap())
    };
    let name = "aten::_scaled_dot_product_efficient_attention";
    assert_eq!(is_decode(name, 1, "[]", "False"), Some(true));
    assert_eq!(is_decode(name, 9, "[]", "True"), Some(false));
    assert_eq!(is_decode(name, 9, "[1,1,9,9]", "False"), Some(false));
    assert_eq!(is_decode(name, 9, "[]", "False"), None);
    assert_eq!(is_decode("aten::mm", 1, "[]", "False"), None);
}

/// Convolutions of one to three dimensions; two operations for each result and weight of a channel.
#[test]
fn convolutions() {
    let of = |shapes: &str, list: &[&str]| {
        let types = types(&["float", "float", ""]);
        of("aten::convolution", shapes, &types, &values(3, list))
    };
    let work = |input: u64, weights: u64, out: u64, each: u64| {
        Some((2 * out * each, Some(4 * (input + weights + out))))
    };
    // Lengths 9 with 3 weights: 9 - 3 + 1.
    let plain = ["[1]", "[0]", "[1]", "False", "[0]", "1"];
    let found = of("[[2,4,9],[8,4,3],[]]", &plain);
    assert_eq!(found, work(2 * 4 * 9, 8 * 4 * 3, 2 * 8 * 7, 4 * 3));
    // Two groups; (9 + 2 - 3) / 2 + 1, and (9 - 2 * 2 - 1) / 1 + 1.
    let odd = ["[2, 1]", "[1, 0]", "[1, 2]", "False", "[0, 0]", "2"];
    let found = of("[[2,4,9,9],[8,2,3,3],[]]", &odd);
    let (input, weights) = (2 * 4 * 9 * 9, 8 * 2 * 3 * 3);
    assert_eq!(found, work(input, weights, 2 * 8 * 5 * 5, 2 * 3 * 3));
    let found = of("[[1,1,4,4,4],[1,1,4,4,4],[]]", &plain);
    assert_eq!(found, work(64, 64, 1, 64));
    // Transposed: each number of the input goes to 8 / 2 channels and 3 places.
    // (5 - 1) * 2 - 2 + 3 - 1 + 1 + 1.
    let turned = ["[2]", "[1]", "[1]", "True", "[1]", "2"];
    let found = of("[[1,4,5],[4,4,3],[]]", &turned);
    let (numbers, weights, out) = (4 * 5, 4 * 4 * 3, 8 * 10);
    let bytes = 4 * (numbers + weights + out);
    assert_eq!(found, Some((2 * numbers * 4 * 3, Some(bytes))));
    assert_eq!(of("[[2,4,9],[8,4,3],[]]", &[]), None);
    let hostile = ["[0]", "[9223372036854775807]", "[1]", "False", "[0]", "1"];
    assert_eq!(of("[[2,4,9],[8,4,3],[]]", &hostile), None);
    assert_eq!(of("[[2],[8],[]]", &plain), None);
}

/// The gradient of the input and that of the weights need what the result needed, each.
#[test]
fn convolutions_backward() {
    let name = "aten::convolution_backward";
    let (out, input, weights) = (2 * 8 * 7, 2 * 4 * 9, 8 * 4 * 3);
    let of = |mask: &str| {
        let types = types(&["float", "float", "float"]);
        let list = ["[0]", "[1]", "[0]", "[1]", "False", "[0]", "1", mask];
        let shapes = "[[2,8,7],[2,4,9],[8,4,3]]";
        of(name, shapes, &types, &values(3, &list))
    };
    let once = 2 * out * 4 * 3;
    let read = out + input + weights;
    let both = Some((2 * once, Some(4 * (read + input + weights))));
    assert_eq!(of("[True, True, False]"), both);
    let one = Some((once, Some(4 * (read + weights))));
    assert_eq!(of("[False, True, True]"), one);
    assert_eq!(of(""), None);
}

#[test]
fn operators_on_each_number() {
    let two = types(&["float", "float"]);
    // 2 x 3 x 4 results of 2 x 1 x 4 and 3 x 1 numbers.
    let found = of("aten::add", "[[2,1,4],[3,1],[]]", &two, "[]");
    assert_eq!(found, Some((24, Some(4 * (8 + 3 + 24)))));
    let mixed = types(&[BF16, "double"]);
    let found = of("aten::mul_", "[[10],[]]", &mixed, "[]");
    assert_eq!(found, Some((10, Some(2 * 20 + 8))));
    let one = types(&[HALF, ""]);
    let found = of("aten::gelu", "[[2,5],[]]", &one, "[]");
    assert_eq!(found, Some((10, Some(2 * 20))));
    // Whole numbers have no floating-point operations.
    let found = of("aten::neg", "[[2,5]]", &types(&["long int"]), "[]");
    assert_eq!(found, Some((0, Some(8 * 20))));
    let three = types(&["float"; 3]);
    let found = of("aten::addcmul", "[[5],[5],[5]]", &three, "[]");
    assert_eq!(found, Some((15, Some(4 * 20))));
    // PyTorch's operators only; those of others have other inputs.
    assert_eq!(of("mylib::add", "[[5],[5]]", &two, "[]"), None);
    assert_eq!(of("add", "[[5],[5]]", &two, "[]"), None);
    assert_eq!(of("aten::add", "[[-5],[5]]", &two, "[]"), None);
}

/// A tensor that was stretched without a copy (stride 0) is read once.
#[test]
fn strides_show_what_is_in_memory() {
    let inputs = Inputs::parse([
        Some("[[4,6],[4,6]]"),
        Some("[[6,1],[0,1]]"),
        Some(r#"["float","float"]"#),
        None,
    ]);
    let work = formula("aten::mul").unwrap().of(&inputs.unwrap()).unwrap();
    assert_eq!(work.bytes, Some(4 * (24 + 6 + 24)));
}

#[test]
fn normalization_and_softmax() {
    let norm = types(&[HALF, "ScalarList", HALF, HALF, "Scalar"]);
    let name = "aten::native_layer_norm";
    let found = of(name, "[[4,6],[],[6],[6],[]]", &norm, "[]");
    assert_eq!(found, Some((24 * 7, Some(2 * (24 + 24 + 12)))));
    let bare = types(&[HALF, "ScalarList", "", "", "Scalar"]);
    let found = of(name, "[[4,6],[],[],[],[]]", &bare, "[]");
    assert_eq!(found, Some((24 * 5, Some(2 * 48))));
    let found = of("aten::_fused_rms_norm", "[[4,6],[],[6],[]]", &norm, "[]");
    assert_eq!(found, Some((24 * 4, Some(2 * 54))));
    let found = of("aten::_softmax", "[[4,6],[],[]]", &types(&[HALF]), "[]");
    assert_eq!(found, Some((24 * 5, Some(2 * 48))));
}

#[test]
fn reductions() {
    let one = types(&["float"]);
    let sum = |dims: &str| of("aten::sum", "[[4,6],[],[],[]]", &one, &values(1, &[dims]));
    assert_eq!(sum("[-1]"), Some((24, Some(4 * (24 + 4)))));
    assert_eq!(sum("[0]"), Some((24, Some(4 * (24 + 6)))));
    assert_eq!(sum("[0, 1]"), Some((24, Some(4 * (24 + 1)))));
    assert_eq!(sum(""), Some((24, Some(4 * (24 + 1)))));
    let found = of(
        "aten::max",
        "[[4,6],[],[]]",
        &one,
        &values(1, &["1", "False"]),
    );
    assert_eq!(found, Some((24, Some(4 * (24 + 4)))));
    // The larger of two.
    let found = of("aten::max", "[[4],[4]]", &types(&["float", "float"]), "[]");
    assert_eq!(found, Some((4, Some(4 * 12))));
    // Which dimensions it leaves out is not known.
    assert_eq!(of("aten::sum", "[[4,6],[]]", &one, "[]"), Some((24, None)));
}

#[test]
fn copies_and_fills() {
    let found = of(
        "aten::copy_",
        "[[8],[8],[]]",
        &types(&["float", HALF]),
        "[]",
    );
    assert_eq!(found, Some((0, Some(8 * 4 + 8 * 2))));
    let found = of("aten::zero_", "[[8]]", &types(&["float"]), "[]");
    assert_eq!(found, Some((0, Some(8 * 4))));
}

/// Numbers of any size overflow nothing.
#[test]
fn what_is_too_large_counts_nothing() {
    let huge = 1_i64 << 40;
    let shapes = format!("[[{huge},{huge}],[{huge},{huge}],[{huge},{huge}],[{huge}]]");
    let types = types(&["float"; 4]);
    let names = ROWS.iter().flat_map(|(names, _)| names.split(' '));
    for name in names {
        let name = match name.contains("::") {
            true => name.to_owned(),
            false => format!("aten::{name}"),
        };
        assert_eq!(of(&name, &shapes, &types, "[]"), None, "{name}");
    }
}
