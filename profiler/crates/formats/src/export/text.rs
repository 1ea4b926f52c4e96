//! Numbers and short descriptions for people.

use super::Weight;
use super::device::DeviceTotals;
use aiprof_model::profile::{Profile, Values};
use aiprof_model::visible;

/// An integer with separators: 1,234,567.
pub(super) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Nanoseconds as seconds with a sensible number of digits: `59.4 s`, `3.20 ms`.
pub(super) fn duration(ns: u64) -> String {
    let value = ns as f64;
    match ns {
        0 => "0 s".to_owned(),
        1..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{} us", three_digits(value / 1e3)),
        1_000_000..1_000_000_000 => format!("{} ms", three_digits(value / 1e6)),
        _ => format!("{} s", three_digits(value / 1e9)),
    }
}

/// A number of at least 1 with three digits, more only before the point.
fn three_digits(value: f64) -> String {
    match value {
        v if v < 9.995 => format!("{v:.2}"),
        v if v < 99.95 => format!("{v:.1}"),
        v => grouped(v.round() as u64),
    }
}

/// `part` of `whole` in percent; 0 of 0 is 0.
pub(super) fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        100.0 * part as f64 / whole as f64
    }
}

/// A value in the unit of a weight: microseconds, samples or bytes.
pub(super) fn weighed(value: u64, weight: Weight) -> String {
    match weight {
        Weight::Time => duration(value.saturating_mul(1000)),
        Weight::Samples => grouped(value),
        Weight::Bytes => bytes(value),
    }
}

/// Bytes with a sensible number of digits: `1.50 GiB`.
pub(super) fn bytes(n: u64) -> String {
    let value = n as f64;
    match n {
        0..1_024 => format!("{n} B"),
        1_024..1_048_576 => format!("{} KiB", three_digits(value / 1024.0)),
        1_048_576..1_073_741_824 => format!("{} MiB", three_digits(value / 1_048_576.0)),
        _ => format!("{} GiB", three_digits(value / 1_073_741_824.0)),
    }
}

/// One line of text from anywhere: see [`visible::one_line`].
pub(super) fn one_line(text: &str) -> String {
    visible::one_line(text).trim().to_owned()
}

/// One line of text for an XML document.
pub(super) fn xml(text: &str) -> String {
    one_line(text)
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// `text` in at most `width` characters; the end of a longer one becomes `..`.
pub(super) fn fit(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(2)).collect();
    kept + &".."[..width.min(2)]
}

/// Most characters of a title: about what fits beside the field of a flame graph.
pub(super) const TITLE: usize = 90;

/// The user's title, or what was recorded and for how long.
pub(super) fn title(profile: &Profile) -> String {
    let meta = &profile.meta;
    let given = one_line(&meta.title);
    if !given.is_empty() {
        return fit(&given, TITLE);
    }
    let scope = match one_line(&meta.scope) {
        scope if scope.is_empty() => "whole machine".to_owned(),
        scope => scope,
    };
    let command = one_line(&meta.command);
    let mut title = scope;
    if meta.duration_ns > 0 {
        title = format!("{title}, {}", duration(meta.duration_ns));
    }
    if !command.is_empty() {
        title = format!("{title}: {command}");
    }
    fit(&title, TITLE)
}

/// Where, how long and how much, and what was lost: one line.
pub(super) fn description(profile: &Profile) -> String {
    let meta = &profile.meta;
    let mut parts = Vec::new();
    let host = fit(&one_line(&meta.host), 40);
    if !host.is_empty() {
        parts.push(host);
    }
    let kernel = fit(&one_line(&meta.kernel), 40);
    if !kernel.is_empty() {
        parts.push(format!("Linux {kernel}"));
    }
    let length = duration(meta.duration_ns);
    parts.push(match meta.cpus {
        0 => length,
        1 => format!("{length} on 1 CPU"),
        cpus => format!("{length} on {cpus} CPUs"),
    });
    let (count, time) = (profile.total_count(), profile.total_time_ns());
    let devices = DeviceTotals::of(profile);
    match profile.values {
        Values::CpuTime if devices.device_samples > 0 => {
            let samples = |n: u64, of: &str| format!("{} {of} samples", grouped(n));
            parts.push(samples(devices.cpu_samples, "CPU"));
            parts.push(format!("{} on CPU", duration(devices.cpu_ns)));
            parts.push(samples(devices.device_samples, "device"));
            parts.push(format!("{} on devices", duration(devices.device_ns)));
        }
        Values::CpuTime => {
            parts.push(format!("{} samples", grouped(count)));
            parts.push(format!("{} on CPU", duration(time)));
        }
        Values::WaitTime => parts.push(format!("{} off CPU", duration(time))),
        Values::WallTime => parts.push(format!("{} on and off CPU", duration(time))),
        Values::Launches => {
            parts.push(format!("{} launches", grouped(count)));
            parts.push(format!("{} moved", bytes(profile.total_bytes())));
            parts.push(format!("{} in calls", duration(time)));
        }
    }
    parts.push(losses(profile, devices.cpu_samples));
    parts.join(", ")
}

/// The losses of CPU samples (or launches), of which there are `count`, in a few words.
fn losses(profile: &Profile, count: u64) -> String {
    let cut = profile.losses.cut_stacks();
    let lost = profile.losses.lost_samples();
    let mut parts = Vec::new();
    if cut > 0 {
        parts.push(format!("{} of stacks cut", share(cut, count)));
    }
    if lost > 0 {
        parts.push(format!(
            "{} samples lost ({})",
            grouped(lost),
            share(lost, count.saturating_add(lost))
        ));
    }
    if parts.is_empty() {
        parts.push("no samples lost, no stacks cut".to_owned());
    }
    parts.join(", ")
}

/// A share in percent that is never rounded down to nothing.
pub(super) fn share(part: u64, whole: u64) -> String {
    match percent(part, whole) {
        p if part > 0 && p < 0.01 => "<0.01%".to_owned(),
        p if p < 1.0 => format!("{p:.2}%"),
        p => format!("{p:.1}%"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(duration(0), "0 s");
        assert_eq!(duration(999), "999 ns");
        assert_eq!(duration(10_101_010), "10.1 ms");
        assert_eq!(duration(9_996_000_000), "10.0 s");
        assert_eq!(duration(59_400_000_000), "59.4 s");
        assert_eq!(duration(7_200_000_000_000), "7,200 s");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(3 << 19), "1.50 MiB");
        assert_eq!(bytes(5 << 40), "5,120 GiB");
        assert_eq!(share(0, 10), "0.00%");
        assert_eq!(share(1, 1_000_000), "<0.01%");
        assert_eq!(share(1, 3), "33.3%");
        assert_eq!(share(1, 0), "<0.01%");
    }

    #[test]
    fn text_fits() {
        assert_eq!(fit("abcdef", 6), "abcdef");
        assert_eq!(fit("abcdef", 5), "abc..");
        assert_eq!(fit("日本語日本語", 4), "日本..");
        assert_eq!(fit("abcdef", 1), ".");
        assert_eq!(fit("abcdef", 0), "");
        assert_eq!(one_line(" a\x1b[2Jb\n"), "a [2Jb");
    }
}
