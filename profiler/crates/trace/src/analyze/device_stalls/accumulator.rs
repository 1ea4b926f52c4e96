//! Which instructions use an accumulator: the hardware keeps their order itself, so no
//! annotation shows it.

use aiprof_symbols::symbolize::device::isa::Instruction;

/// Instructions that write an accumulator whatever their operands are.
const WRITES: [&str; 5] = ["mac", "mach", "addc", "subb", "sada2"];
/// Instructions that read one whatever their operands are.
const READS: [&str; 4] = ["mac", "mach", "macl", "sada2"];

/// The operands in the syntax, the destination first; `None`: not known.
fn operands(instruction: &Instruction) -> Option<impl Iterator<Item = &str>> {
    let text = instruction.text.as_deref()?;
    let words = text.split('{').next()?.split_whitespace();
    Some(
        words
            .skip_while(|word| *word != instruction.mnemonic)
            .skip(1),
    )
}

fn is_accumulator(word: &str) -> bool {
    let word = word
        .trim_start_matches(['(', '-', '~'])
        .trim_start_matches("abs)");
    let number = word
        .strip_prefix("acc")
        .or_else(|| word.strip_prefix("mme"));
    number.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// Whether the instruction is known to write an accumulator.
pub(super) fn is_written(instruction: &Instruction) -> bool {
    let plain = instruction.mnemonic.split('.').next().unwrap_or_default();
    if WRITES.contains(&plain) {
        return true;
    }
    let Some(operands) = operands(instruction) else {
        return false;
    };
    // Behind the execution size, `(16|M0)`, stands the destination.
    let mut destination = operands.skip_while(|word| word.starts_with('('));
    let marked = instruction
        .text
        .as_deref()
        .is_some_and(|t| t.contains("AccWrEn"));
    marked || destination.next().is_some_and(is_accumulator)
}

/// Whether the instruction is known to read an accumulator.
pub(super) fn is_read(instruction: &Instruction) -> bool {
    let plain = instruction.mnemonic.split('.').next().unwrap_or_default();
    READS.contains(&plain)
        || operands(instruction).is_some_and(|operands| {
            let mut sources = operands.skip_while(|word| word.starts_with('(')).skip(1);
            sources.any(is_accumulator)
        })
}
