//! Fields of protobuf messages made by hand, by the numbers that a schema gives them.

pub(super) fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value > 127 {
        out.push(value as u8 | 128);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

pub(super) fn int(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

pub(super) fn bytes(field: u64, value: &[u8]) -> Vec<u8> {
    let head = [varint(field << 3 | 2), varint(value.len() as u64)].concat();
    [head, value.to_vec()].concat()
}

pub(super) fn message(field: u64, parts: &[Vec<u8>]) -> Vec<u8> {
    bytes(field, &parts.concat())
}
