//! How long each CPU was busy: what samples of a cycle counter share out.

use aiprof_system::files::kernel;
use std::collections::BTreeMap;

/// Nanoseconds in one tick of /proc/stat (USER_HZ is 100 on every architecture
/// of today).
const TICK_NS: u64 = 10_000_000;

/// Busy time of every CPU since boot, in nanoseconds, by CPU number.
pub fn busy_ns() -> BTreeMap<u32, u64> {
    kernel::read_to_string("/proc/stat").map_or_else(|_| BTreeMap::new(), |text| parse(&text))
}

/// What was added from one reading to the next.
pub fn since(before: &BTreeMap<u32, u64>, now: &BTreeMap<u32, u64>) -> BTreeMap<u32, u64> {
    let was = |cpu| before.get(cpu).copied().unwrap_or(0);
    now.iter()
        .map(|(cpu, ns)| (*cpu, ns.saturating_sub(was(cpu))))
        .collect()
}

/// `cpuN user nice system idle iowait irq softirq steal guest guest_nice`
/// (proc_stat(5)): all but idle and iowait; guest time is part of user time,
/// stolen time was not this machine's.
fn parse(text: &str) -> BTreeMap<u32, u64> {
    let cpu = |line: &str| -> Option<(u32, u64)> {
        let mut fields = line.strip_prefix("cpu")?.split_ascii_whitespace();
        let cpu = fields.next()?.parse().ok()?;
        let ticks: Vec<u64> = fields.map_while(|f| f.parse().ok()).collect();
        let busy = [0, 1, 2, 5, 6].iter().filter_map(|&i| ticks.get(i));
        let ticks = busy.fold(0u64, |sum, t| sum.saturating_add(*t));
        Some((cpu, ticks.saturating_mul(TICK_NS)))
    };
    // The first line, "cpu " without a number, is their sum.
    text.lines()
        .filter(|line| !line.starts_with("cpu "))
        .filter_map(cpu)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_what_is_busy() {
        let before =
            parse("cpu  9 9 9 9 9\ncpu0 10 20 30 1000 50 1 2 77 5 0\ncpu1 1 0 0 0 0 0 0\nintr 5\n");
        assert_eq!(before, BTreeMap::from([(0, 63 * TICK_NS), (1, TICK_NS)]));
        let now = BTreeMap::from([(0, 64 * TICK_NS), (1, TICK_NS), (2, 5)]);
        assert_eq!(
            since(&before, &now),
            BTreeMap::from([(0, TICK_NS), (1, 0), (2, 5)])
        );
        assert!(parse("cpux 1\ncpu\nrubbish").is_empty());
    }
}
