//! Instructions, places and explanations in words.

use crate::export::text::{bytes, grouped, one_line};
use aiprof_symbols::symbolize::device::SourceFrame;
use aiprof_symbols::symbolize::device::isa::Instruction;
use aiprof_trace::analyze::device_stalls::{
    InstructionStalls, KernelStalls, Producer, Role, SourcePlace, Why, pipe_name,
};

/// Longest syntax of an instruction.
const MAX_SYNTAX: usize = 200;

/// File name and line: `gemm.cl:47`.
fn short(frame: &SourceFrame) -> String {
    let file = one_line(frame.file.rsplit('/').next().unwrap_or_default());
    match (file.is_empty(), frame.line) {
        (true, _) => "[no file]".to_owned(),
        (false, 0) => file,
        (false, line) => format!("{file}:{line}"),
    }
}

/// The line of an instruction: `tile.h:12`; empty if it is not known.
pub(in crate::export) fn line_name(place: &SourcePlace) -> String {
    let last = place.last().filter(|frame| frame.line > 0);
    last.map(short).unwrap_or_default()
}

/// Where that line is inlined: `in load() at gemm.cl:47`; empty if it is not.
pub(in crate::export) fn place_note(place: &SourcePlace) -> String {
    let mut notes = Vec::new();
    for pair in place.windows(2).rev() {
        if let [outer, inner] = pair {
            let function = one_line(&inner.function);
            notes.push(format!("in {function} at {}", short(outer)));
        }
    }
    notes.join(", ")
}

/// An instruction: its syntax, where that is known, else mnemonic and annotation.
pub(in crate::export) fn instruction(instruction: &Instruction) -> String {
    if let Some(text) = &instruction.text {
        // `send.ugm ... {$0} // wr:1+0, rd:2; load.ugm.d32x32t`: what a message does is
        // behind the semicolon.
        let (syntax, comment) = text.split_once("//").unwrap_or((text, ""));
        let message = comment.split_once(';').map_or("", |(_, message)| message);
        let mut words: Vec<&str> = syntax.split_whitespace().collect();
        let message: Vec<&str> = message.split_whitespace().collect();
        if !message.is_empty() {
            words.push("//");
            words.extend(message);
        }
        return one_line(&words.join(" "))
            .chars()
            .take(MAX_SYNTAX)
            .collect();
    }
    let swsb = instruction.swsb.to_string();
    match swsb.is_empty() {
        true => instruction.mnemonic.to_string(),
        false => format!("{} {{{swsb}}}", instruction.mnemonic),
    }
}

/// What a producer has to do with it: `$4`, `float pipe`.
pub(in crate::export) fn role_name(role: Role) -> String {
    match role {
        Role::Token(number) => format!("${number}"),
        Role::Pipe(pipe) => format!("{} pipe", pipe_name(pipe)),
        Role::Accumulator => "accumulator".to_owned(),
        Role::Signal => "barrier signal".to_owned(),
        Role::Branch => "branch".to_owned(),
        Role::Send => "send".to_owned(),
    }
}

/// `0x200 send.ugm (gemm.cl:45), round the loop`.
fn producer(kernel: &KernelStalls, producer: &Producer) -> String {
    let Some(found) = kernel.instruction(producer.instruction) else {
        return String::new();
    };
    let line = match line_name(&kernel.place(producer.instruction)) {
        line if line.is_empty() => String::new(),
        line => format!(" ({line})"),
    };
    let way = match (producer.direct, producer.looped) {
        (false, true) => " in the previous loop iteration",
        (true, true) => " in this or the previous loop iteration",
        _ => "",
    };
    format!("{:#x} {}{line}{way}", found.offset, found.mnemonic)
}

/// Why an instruction stalls, in a sentence: what it waits for, who that is, and what
/// is not known.
pub(in crate::export) fn why_text(kernel: &KernelStalls, why: &Why) -> String {
    let mut text = why.text.clone();
    let all: Vec<String> = why.producers.iter().map(|p| producer(kernel, p)).collect();
    if !all.is_empty() {
        text.push_str(": ");
        text.push_str(&all.join("; "));
    }
    if why.more > 0 {
        text.push_str(&format!("; and {} more", why.more));
    }
    if !why.open.is_empty() {
        text.push_str(&format!(" ({})", why.open));
    }
    text
}

/// The compiler's facts about a kernel: `Xe2, SIMD16, 128 registers, 4,352 bytes of code`.
pub(in crate::export) fn attributes(kernel: &KernelStalls) -> Vec<String> {
    let Ok(code) = &kernel.code else {
        return Vec::new();
    };
    let attributes = &code.kernel.attributes;
    let mut all = vec![format!("{:?}", code.platform)];
    all.extend(attributes.simd_size.map(|n| format!("SIMD{n}")));
    all.extend(attributes.grf_count.map(|n| format!("{n} registers")));
    let size = |n: Option<u64>, what: &str| n.map(|n| format!("{} of {what}", bytes(n)));
    all.extend(attributes.spill_bytes.map(|n| match n {
        0 => "no spills".to_owned(),
        n => format!("{} of spills", bytes(n)),
    }));
    all.extend(size(
        attributes.private_bytes.filter(|n| *n > 0),
        "private memory",
    ));
    all.extend(size(
        attributes.slm_bytes.filter(|n| *n > 0),
        "shared local memory",
    ));
    let count = code.decoded.instructions.len() as u64;
    all.push(format!(
        "{} instructions in {} bytes",
        grouped(count),
        grouped(code.kernel.code.len() as u64)
    ));
    if code.decoded.bad > 0 {
        all.push(format!(
            "{} unknown instructions",
            grouped(code.decoded.bad.into())
        ));
    }
    all
}

/// The offset of an instruction: `0x248`.
pub(in crate::export) fn offset(stalled: &InstructionStalls) -> String {
    match stalled.offset {
        Some(offset) => format!("{offset:#x}"),
        None => "?".to_owned(),
    }
}

/// What stands for an instruction with samples.
pub(in crate::export) fn syntax(kernel: &KernelStalls, stalled: &InstructionStalls) -> String {
    match stalled.index.and_then(|index| kernel.instruction(index)) {
        Some(found) => instruction(found),
        None if stalled.offset.is_none() => "[offset not known]".to_owned(),
        None if kernel.code.is_ok() => "[no instruction there]".to_owned(),
        None => "[code not known]".to_owned(),
    }
}
