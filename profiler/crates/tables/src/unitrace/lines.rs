//! A line for each command of a device that has ended: unitrace's `-t`.

use super::Scope;
use super::command::{Command, commands};
use aiprof_model::timeline::{Time, Timeline};

/// The lines of a timeline, in the order of ends. Times are nanoseconds of CLOCK_MONOTONIC;
/// `base_ns` is what the times of the timeline's file count from. Where a device's times are not known, what
/// a begin is at least and an end at most has marks, which unitrace does not have.
pub fn lines(timeline: &Timeline, scope: &Scope, base_ns: u64) -> Vec<String> {
    let origin_ns = timeline.origin().saturating_mul(1000);
    let base_ns = base_ns.saturating_add_signed(origin_ns);
    let mut found: Vec<(Time, String)> = commands(timeline, scope)
        .map(|(_, command)| (command.end, line(&command, base_ns)))
        .collect();
    found.sort_by_key(|(end, _)| *end);
    found.into_iter().map(|(_, line)| line).collect()
}

fn line(command: &Command<'_>, base_ns: u64) -> String {
    let at = |time: Time| base_ns.saturating_add_signed(time.nanos());
    let (start, end) = (at(command.start), at(command.end));
    let (submit, marks) = match command.is_exact {
        true => (
            start.saturating_sub(command.submit_ns.unwrap_or(0)),
            ["", ""],
        ),
        false => (start, [">=", "<="]),
    };
    let count = command.count.max(1);
    let append = submit.saturating_sub(command.append_ns.unwrap_or(0) / count);
    let is_cl = command.backend.starts_with("CL");
    let (device, name) = match is_cl {
        true => (format!("{:#x}", command.device), command.shaped()),
        false => (
            command.device.to_string(),
            format!("\"{}\"", command.shaped()),
        ),
    };
    let times = match command.count {
        1 => String::new(),
        several => format!(" x{several}"),
    };
    let [from, to] = marks;
    format!(
        "Thread {} Device {device} : {name}{times} [ns] {append} (append) {submit} (submit) \
         {from}{start} (start) {to}{end} (end)",
        command.tid,
    )
}
