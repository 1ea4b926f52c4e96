//! Metrics as text: OpenMetrics, and the format that Prometheus had before it.

use super::table::{METRICS, Metric, MetricSources, Type};
use std::fmt::Write as _;

/// Longest value of a label.
const MAX_LABEL: usize = 256;

/// A format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus's text format 0.0.4.
    Old,
}

impl Format {
    /// The value of `Content-Type`.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Old => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// All metrics that are known.
pub(crate) fn write(known: &MetricSources, format: Format) -> String {
    let mut out = String::new();
    for metric in METRICS {
        let rows = metric.rows(known);
        if rows.is_empty() {
            continue;
        }
        head(&mut out, metric, format);
        for (labels, value) in rows {
            out.push_str(metric.name);
            out.push_str(metric.kind.suffix());
            labelled(&mut out, metric.labels, &labels);
            // A String takes all that is written.
            let _ = match value.is_finite() {
                true => writeln!(out, " {value}"),
                false => writeln!(out, " NaN"),
            };
        }
    }
    if format == Format::OpenMetrics {
        out.push_str("# EOF\n");
    }
    out
}

fn head(out: &mut String, metric: &Metric, format: Format) {
    let Metric { name, help, .. } = metric;
    let (family, kind) = match (format, metric.kind) {
        (Format::OpenMetrics, kind) => ((*name).to_owned(), kind.word()),
        (Format::Old, Type::Info) => (format!("{name}_info"), "gauge"),
        (Format::Old, kind) => (format!("{name}{}", kind.suffix()), kind.word()),
    };
    let _ = writeln!(out, "# TYPE {family} {kind}");
    if format == Format::OpenMetrics && !metric.unit.is_empty() {
        let _ = writeln!(out, "# UNIT {family} {}", metric.unit);
    }
    let _ = writeln!(out, "# HELP {family} {help}");
}

fn labelled(out: &mut String, names: &[&str], values: &[String]) {
    if names.is_empty() {
        return;
    }
    out.push('{');
    for (at, (name, value)) in names.iter().zip(values).enumerate() {
        if at > 0 {
            out.push(',');
        }
        let _ = write!(out, "{name}=\"");
        for c in value.chars().take(MAX_LABEL) {
            match c {
                '\\' => out.push_str("\\\\"),
                '"' => out.push_str("\\\""),
                '\n' => out.push_str("\\n"),
                c if c.is_control() => out.push(' '),
                c => out.push(c),
            }
        }
        out.push('"');
    }
    out.push('}');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::table::Own;
    use aiprof_fleet::status::{AgentStatus, DeviceStatus, OutputStatus, SenderStatus, SentStatus};
    use std::time::Duration;

    /// With something of everything.
    fn known() -> MetricSources {
        let one = |name: &str, value: f64| [(name.to_owned(), value)].into();
        let agent = AgentStatus {
            written_unix_ns: 5_000_000_000,
            losses: [("ring_drops".to_owned(), 3)].into(),
            recording: vec!["cpu".to_owned()],
            outputs: [("otlp".to_owned(), OutputStatus::default())].into(),
            devices: [(
                "a\"\\\nb".to_owned(),
                DeviceStatus {
                    busy: 0.5,
                    idle: one("host", f64::NAN),
                },
            )]
            .into(),
            ..AgentStatus::default()
        };
        let sender = SenderStatus {
            outputs: [("otlp".to_owned(), SentStatus::default())].into(),
            ..SenderStatus::default()
        };
        MetricSources {
            agent: Some(agent),
            sender,
            now_unix_ns: 6_000_000_000,
            window: Duration::from_secs(60),
            own: Own::default(),
        }
    }

    #[test]
    fn the_documentation_has_the_table_of_what_is_served() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/agent-metrics.md");
        let documented = std::fs::read_to_string(path).unwrap();
        let documented: Vec<_> = documented
            .lines()
            .filter(|line| line.starts_with("| `aiprof_"))
            .collect();
        let expected: Vec<_> = METRICS
            .iter()
            .map(|metric| {
                let labels: Vec<_> = metric.labels.iter().map(|l| format!("`{l}`")).collect();
                let (name, kind) = (metric.name, metric.kind);
                format!(
                    "| `{name}{}` | {} | {} | {} |",
                    kind.suffix(),
                    kind.word(),
                    labels.join(", "),
                    metric.help
                )
            })
            .collect();
        assert_eq!(documented, expected, "\n{}", expected.join("\n"));
    }

    #[test]
    fn each_metric_is_served_and_named_by_the_rules() {
        let known = known();
        let mut families = Vec::new();
        for metric in METRICS {
            assert!(!metric.rows(&known).is_empty(), "{}", metric.name);
            assert!(metric.name.ends_with(metric.unit), "{}", metric.name);
            assert!(!metric.name.ends_with("_total") && !metric.name.ends_with("_info"));
            for (labels, _) in metric.rows(&known) {
                assert_eq!(labels.len(), metric.labels.len(), "{}", metric.name);
            }
            families.push(format!("{}{}", metric.name, metric.kind.suffix()));
            families.push(metric.name.to_owned());
        }
        families.sort();
        let all = families.len();
        families.dedup();
        // Names of gauges are in it twice.
        let gauges = METRICS.iter().filter(|metric| metric.kind == Type::Gauge);
        assert_eq!(families.len(), all - gauges.count());
    }

    #[test]
    fn labels_are_escaped_and_the_end_is_marked() {
        let text = write(&known(), Format::OpenMetrics);
        assert!(text.contains("aiprof_accelerator_busy_ratio{device=\"a\\\"\\\\\\nb\"} 0.5\n"));
        assert!(text.contains("cause=\"host\"} NaN\n"));
        assert!(text.contains("# TYPE aiprof_windows counter\n"));
        assert!(text.contains("aiprof_windows_total 0\n"));
        assert!(text.contains("# UNIT aiprof_cpu_seconds seconds\n"));
        assert!(text.ends_with("# EOF\n"));
        let text = write(&known(), Format::Old);
        assert!(text.contains("# TYPE aiprof_windows_total counter\n"));
        assert!(text.contains("# TYPE aiprof_build_info gauge\n"));
        assert!(!text.contains("# EOF") && !text.contains("# UNIT"));
    }

    #[test]
    fn the_agent_is_up_while_its_status_is_fresh() {
        let is_up = |known: &MetricSources| {
            write(known, Format::Old)
                .lines()
                .any(|line| line == "aiprof_up 1")
        };
        let mut known = known();
        assert!(is_up(&known));
        known.now_unix_ns += 90_000_000_000;
        assert!(!is_up(&known));
        known.agent = None;
        assert!(!is_up(&known));
        let text = write(&known, Format::OpenMetrics);
        assert!(text.contains("aiprof_up 0") && text.contains("aiprof_spool_profiles"));
    }
}
