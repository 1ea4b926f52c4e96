//! Which process it is: proc_pid_stat(5).

use crate::files::kernel;

/// When a process started, in ticks since the machine did (field 22 of
/// /proc/PID/stat): with its id, which process it is. `None`: there is none.
pub fn start_time(pid: u32) -> Option<u64> {
    let stat = kernel::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything; the third field is the first behind it.
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(19)?.parse().ok()
}
