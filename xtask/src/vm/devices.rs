//! Judging the VM's device programs (xtask/vm): that the devices are real, that
//! every ioctl got the answer it must get, and that fences lasted as scheduled.
//! Without this, events that a profiler fails to see could be events that never
//! happened.

use anyhow::{Result, bail};

use super::console::{count, ended, step};
use crate::counts::Counts;

/// Rounds that each program makes (xtask/vm/devices).
const ROUNDS: usize = 5;
/// How long vgem_work holds its fences, in its order, and in how many rounds.
const HELD_MS: [u64; 5] = [30, 40, 60, 100, 200];
const FENCE_ROUNDS: usize = 3;
/// `EFAULT`, `ENOTTY`, `EBADF`, `EEXIST` of errno(3).
const EFAULT: u64 = 14;
const ENOTTY: u64 = 25;
const EBADF: u64 = 9;
const EEXIST: u64 = 17;

/// Judges one VM's run: six tests.
pub(super) fn judge(series: &str, console: &str) -> Counts {
    count(
        series,
        [
            ("fences", fences(console)),
            ("xe ioctls", xe(console)),
            (
                "i915 ioctls",
                cuse(console, "i915", "EXECBUFFER2", "GEM_WAIT"),
            ),
            ("amdgpu ioctls", cuse(console, "amdgpu", "CS", "WAIT_CS")),
            (
                "kfd ioctls",
                cuse(console, "kfd", "CREATE_QUEUE", "WAIT_EVENTS"),
            ),
            ("vfio ioctls", vfio(console)),
        ],
    )
}

/// vgem's fences were pending as long as they were held.
fn fences(console: &str) -> Result<String> {
    ended(&step(console, "modules"), 0)?;
    let account = step(console, "vgem");
    ended(&account, 0)?;
    let pending: Vec<u64> = events(&account.lines, "signal")
        .filter_map(|line| number(line, "pending_ns"))
        .collect();
    if pending.len() != HELD_MS.len() * FENCE_ROUNDS {
        bail!("{} fences were signalled", pending.len());
    }
    for (i, pending) in pending.iter().enumerate() {
        let held = HELD_MS[i % HELD_MS.len()] * 1_000_000;
        // An emulated CPU may sleep too long, never too short.
        if *pending < held || *pending > held + 500_000_000 {
            bail!("fence {i} was pending {pending} ns instead of {held}");
        }
    }
    Ok(format!("{} fences", pending.len()))
}

/// The ioctls of the account of `step` on the device that served it: every one
/// of them arrived, the waits took their time, and nothing failed that must not.
fn cuse(console: &str, driver: &str, submit: &str, wait: &str) -> Result<String> {
    let account = step(console, &format!("ioctls-{driver}"));
    ended(&account, 0)?;
    let calls: Vec<_> = events(&account.lines, "call").collect();
    let submits = calls.iter().filter(|call| is(call, submit)).count();
    let waits: Vec<_> = calls.iter().filter(|call| is(call, wait)).collect();
    if submits == 0 || waits.len() != ROUNDS {
        bail!("{submits} submissions and {} waits", waits.len());
    }
    if let Some(short) = waits.iter().find(|call| duration(call) < 20_000_000) {
        bail!("a wait was shorter than the device's 20 ms: {short}");
    }
    let well = calls.iter().filter(|call| number(call, "error") == Some(0));
    let (well, served) = (
        well.count(),
        events(&step(console, &format!("served-{driver}")).lines, "served").count(),
    );
    if well != served {
        bail!("{well} calls succeeded, but the device served {served}");
    }
    if let Some(failed) = calls
        .iter()
        .find(|call| number(call, "error") != Some(0) && !call.contains("\"bad\""))
    {
        bail!("failed: {failed}");
    }
    Ok(format!("{served} calls"))
}

/// xe's calls, and the mistakes at their end, which fail as they must.
fn xe(console: &str) -> Result<String> {
    let detail = cuse(console, "xe", "EXEC", "WAIT_USER_FENCE")?;
    let account = step(console, "ioctls-xe");
    let errors: Vec<_> = events(&account.lines, "call")
        .filter_map(|line| number(line, "error"))
        .filter(|error| *error != 0)
        .collect();
    if errors != [EFAULT, ENOTTY, EBADF] {
        bail!("wrong calls failed with unexpected errors: {errors:?}");
    }
    let vm = |command: &str| {
        let mut calls = events(&account.lines, "call");
        number(calls.find(|line| is(line, command))?, "vm")
    };
    if vm("VM_CREATE") != Some(1) || vm("EXEC_QUEUE_CREATE") != Some(1) {
        bail!("the program did not receive the device's answers");
    }
    Ok(detail)
}

/// Real VFIO: what was mapped was unmapped, and a second mapping refused.
fn vfio(console: &str) -> Result<String> {
    let account = step(console, "vfio");
    ended(&account, 0)?;
    let calls: Vec<_> = events(&account.lines, "call").collect();
    let sum = |command: &str, key: &str| -> u64 {
        let good = |call: &&&str| is(call, command) && number(call, "error") == Some(0);
        calls
            .iter()
            .filter(good)
            .filter_map(|call| number(call, key))
            .sum()
    };
    let (mapped, unmapped) = (
        sum("IOMMU_MAP_DMA", "range"),
        sum("IOMMU_UNMAP_DMA", "unmapped"),
    );
    if mapped != 4 * 65536 || unmapped != mapped {
        bail!("{mapped} bytes mapped, {unmapped} unmapped");
    }
    let refused = |call: &&str| is(call, "IOMMU_MAP_DMA") && number(call, "error") == Some(EEXIST);
    if !calls.iter().any(refused) {
        bail!("the second mapping of an address was not refused");
    }
    Ok(format!("{} calls", calls.len()))
}

/// The account's lines about one kind of event.
fn events<'a>(lines: &'a [&'a str], event: &str) -> impl Iterator<Item = &'a str> {
    let start = format!("{{\"event\":\"{event}\"");
    lines
        .iter()
        .copied()
        .filter(move |line| line.starts_with(&start))
}

fn is(line: &str, command: &str) -> bool {
    line.contains(&format!("\"command\":\"{command}\""))
}

/// A number of a line. The accounts are flat enough to need no JSON reader,
/// which xtask does without.
fn number(line: &str, key: &str) -> Option<u64> {
    let (_, rest) = line.split_once(&format!("\"{key}\":"))?;
    let end = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    rest[..end].parse().ok()
}

fn duration(line: &str) -> u64 {
    let (before, after) = (number(line, "before"), number(line, "after"));
    after
        .unwrap_or_default()
        .saturating_sub(before.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(command: &str, took: u64, error: u64, more: &str) -> String {
        format!(
            "{{\"event\":\"call\",\"command\":\"{command}\",\"before\":5,\"after\":{},\"error\":{error}{more}}}",
            5 + took
        )
    }

    fn steps(parts: &[(&str, Vec<String>)]) -> String {
        parts
            .iter()
            .map(|(name, lines)| format!("@@begin {name}\n{}\n@@status 0\n", lines.join("\n")))
            .collect()
    }

    fn served(n: usize) -> Vec<String> {
        vec!["{\"event\":\"served\"}".to_string(); n]
    }

    #[test]
    fn judges_fences() {
        let signal =
            |ms: u64| format!("{{\"event\":\"signal\",\"pending_ns\":{}}}", ms * 1_000_000);
        let good: Vec<_> = (0..FENCE_ROUNDS)
            .flat_map(|_| HELD_MS.map(|ms| signal(ms + 1)))
            .collect();
        let mut short = good.clone();
        short[3] = signal(99);
        let console = |lines: Vec<String>| steps(&[("modules", vec![]), ("vgem", lines)]);
        assert_eq!(fences(&console(good.clone())).unwrap(), "15 fences");
        assert!(fences(&console(short)).is_err());
        assert!(fences(&console(good[1..].to_vec())).is_err());
        assert!(fences("").is_err());
    }

    fn xe_calls() -> Vec<String> {
        let mut calls = vec![
            call("VM_CREATE", 1, 0, ",\"vm\":1"),
            call("EXEC_QUEUE_CREATE", 1, 0, ",\"vm\":1"),
        ];
        for _ in 0..ROUNDS {
            calls.push(call("EXEC", 1, 0, ""));
            calls.push(call("WAIT_USER_FENCE", 21_000_000, 0, ""));
        }
        for error in [EFAULT, ENOTTY, EBADF] {
            calls.push(call("EXEC", 1, error, ",\"bad\":\"address\""));
        }
        calls
    }

    #[test]
    fn judges_xe() {
        let console =
            |calls: Vec<String>, n| steps(&[("ioctls-xe", calls), ("served-xe", served(n))]);
        let good = xe_calls();
        assert_eq!(xe(&console(good.clone(), 12)).unwrap(), "12 calls");
        // One that the device never saw, one answer that never came, a wait that
        // did not wait, a mistake that went well, a failure.
        assert!(xe(&console(good.clone(), 11)).is_err());
        let change = |from: &str, to: &str| -> Vec<String> {
            good.iter().map(|line| line.replace(from, to)).collect()
        };
        assert!(xe(&console(change("\"vm\":1", "\"vm\":0"), 12)).is_err());
        assert!(xe(&console(change(":21000005", ":19000005"), 12)).is_err());
        assert!(xe(&console(change("\"error\":9,", "\"error\":0,"), 12)).is_err());
        assert!(xe(&console(change(",\"bad\":\"address\"", ""), 12)).is_err());
    }

    #[test]
    fn judges_vfio() {
        let map = call("IOMMU_MAP_DMA", 1, 0, ",\"range\":65536");
        let refused = call("IOMMU_MAP_DMA", 1, EEXIST, ",\"range\":65536");
        let unmap = call(
            "IOMMU_UNMAP_DMA",
            1,
            0,
            ",\"range\":262144,\"unmapped\":262144",
        );
        let mut calls = vec![map.clone(), map.clone(), map.clone(), map, refused, unmap];
        assert!(vfio(&steps(&[("vfio", calls.clone())])).is_ok());
        calls.pop();
        assert!(vfio(&steps(&[("vfio", calls.clone())])).is_err());
        assert!(vfio("").is_err());
    }
}
