//! What a kernel's attributes have to do with its stalls. Only what the samples and
//! the compiler's words support.

use super::why::unit_of;
use super::{Code, InstructionStalls, Tally};
use aiprof_model::profile::StallReason;

/// Part of the samples, in percent, from which on something is worth a hint.
const WORTH: u64 = 10;

pub(super) fn of(code: &Code, samples: &Tally, stalled: &[InstructionStalls]) -> Vec<String> {
    let attributes = &code.kernel.attributes;
    let total = samples.total();
    let percent = |count: u64| match total {
        0 => 0,
        total => (u128::from(count) * 100 / u128::from(total)) as u64,
    };
    let memory = samples
        .of(StallReason::Sbid)
        .saturating_add(samples.of(StallReason::Send));
    let waits = percent(memory);
    let mut hints = Vec::new();
    let some = |bytes: Option<u64>| bytes.filter(|bytes| *bytes > 0 && waits >= WORTH);
    if let Some(bytes) = some(attributes.spill_bytes) {
        hints.push(format!(
            "registers spill to memory ({bytes} bytes per thread), and {waits} % of the samples \
             wait for the scoreboard or for sends. Use more registers per thread or fewer live \
             values"
        ));
    }
    if let Some(bytes) = some(attributes.private_bytes) {
        hints.push(format!(
            "arrays or addressed variables are in private memory ({bytes} bytes), and {waits} % of \
             the samples wait for the scoreboard or for sends"
        ));
    }
    if let (Some(threads), Some(registers)) = (attributes.eu_thread_count, attributes.grf_count)
        && threads < 8
        && waits >= WORTH
    {
        hints.push(format!(
            "with {registers} registers per thread, an execution unit has only {threads} threads, \
             so fewer can run while others wait"
        ));
    }
    let barrier = percent(samples.of(StallReason::Sync));
    if barrier >= WORTH && attributes.barrier_count.is_some_and(|count| count > 0) {
        hints.push(format!(
            "{barrier} % of the samples wait for synchronization, and the kernel has barriers: \
             check whether all threads reach them at the same time"
        ));
    }
    hints.extend(units(code, stalled, total));
    hints
}

/// Which unit the tokens that are waited for belong to.
fn units(code: &Code, stalled: &[InstructionStalls], total: u64) -> Option<String> {
    let mut units: std::collections::BTreeMap<&str, u64> = std::collections::BTreeMap::new();
    for (reason, count, why) in stalled.iter().flat_map(|i| &i.why) {
        if *reason != StallReason::Sbid {
            continue;
        }
        let holders = why.producers.iter();
        let holders = holders.filter_map(|p| code.decoded.instructions.get(p.instruction));
        let mut names: Vec<&str> = holders
            .map(|i| unit_of(i).unwrap_or_else(|| i.mnemonic.split('.').next().unwrap_or_default()))
            .collect();
        names.dedup();
        // With several units, it is not known which one is waited for.
        if let [one] = names.as_slice() {
            let sum = units.entry(one).or_default();
            *sum = sum.saturating_add(*count);
        }
    }
    let (unit, count) = units.into_iter().max_by_key(|(_, count)| *count)?;
    let share = u128::from(count) * 100 / u128::from(total.max(1));
    let what = match unit {
        "ugm" | "ugml" | "hdc1" | "dc1" | "dc0" | "hdc" => " (global memory)",
        "slm" => " (shared local memory)",
        "tgm" | "rc" => " (images)",
        "dpas" | "dpasw" => " (systolic array)",
        _ => "",
    };
    (share >= u128::from(WORTH))
        .then(|| format!("{share} % of the samples wait for tokens that {unit}{what} holds"))
}
