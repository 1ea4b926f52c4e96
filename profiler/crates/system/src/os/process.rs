//! Which process it is, whose, and from whom: proc_pid_stat(5), proc_pid_status(5).

use crate::files::kernel;

/// When a process started, in ticks since the machine did (field 22 of
/// /proc/PID/stat): with its id, which process it is. `None`: there is none.
pub fn start_time(pid: u32) -> Option<u64> {
    stat_field(pid, 19)?.parse().ok()
}

/// The parent of a process; `None`: it has none in this namespace, or is gone.
pub fn parent(pid: u32) -> Option<u32> {
    stat_field(pid, 1)?.parse().ok().filter(|pid| *pid != 0)
}

/// A field of /proc/PID/stat behind the name, from 0 on.
fn stat_field(pid: u32, nth: usize) -> Option<String> {
    let stat = kernel::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // The name may hold anything.
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(nth).map(str::to_owned)
}

/// The text of /proc/PID/status; `None`: the process is gone.
pub fn status(pid: u32) -> Option<String> {
    kernel::read_to_string(format!("/proc/{pid}/status")).ok()
}

/// The numbers in a line of such a text, as behind `Uid:`. Those of users and groups are: real,
/// effective, saved, and for files.
pub fn numbers<'s>(status: &'s str, name: &str) -> impl Iterator<Item = u32> + use<'s> {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let words = line.unwrap_or_default().split_ascii_whitespace();
    words.map_while(|word| word.parse().ok())
}
