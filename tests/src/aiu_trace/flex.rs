//! FLEX files: lists of events with counters.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::json::{Packing, Values};
use super::story::{Event, Kind, Story};

/// How begin and end are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairs {
    /// One event of phase `X`.
    Complete,
    /// `B` and then its `E`.
    Adjacent,
    /// All `B` and `E` in the order of their times.
    Apart,
}

/// A writer of FLEX files.
#[derive(Clone, Copy, Debug)]
pub struct Flex {
    /// How begin and end are written.
    pub pairs: Pairs,
    /// Where counters are: `attr` or `args`.
    pub key: &'static str,
    /// How counters are written.
    pub values: Values,
    /// How files are packed.
    pub packing: Packing,
    /// Process ids are the rank plus this.
    pub first_pid: u64,
}

impl Default for Flex {
    /// As the shipped samples are.
    fn default() -> Self {
        Self {
            pairs: Pairs::Adjacent,
            key: "attr",
            values: Values::Hex,
            packing: Packing::None,
            first_pid: 0,
        }
    }
}

/// Threads as the samples name them, one for each kind.
fn tid(event: &Event) -> u64 {
    match event.kind {
        Kind::Prep => 15_514_734_831_341_844_875,
        Kind::Exec => 2_009_867_741_857_745_393,
        Kind::DmaOut => 3_789_868_786_995_959_152,
        Kind::DmaIn => 10_171_339_826_193_370_790,
        Kind::Cpu if event.name == "AIU Roundtrip" => 7_204_312_094_173_114_020,
        Kind::Cpu => 139_637_976_713_216,
    }
}

impl Flex {
    /// Writes each job into a file of its own, `rank0_job0.json` and so on;
    /// returns their paths by rank, then job.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self, story: &Story, dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
        let jobs = story.jobs.iter();
        jobs.map(|job| {
            let text = self.text(&story.of_job(job.rank, job.job));
            let name = format!("rank{}_job{}.json", job.rank, job.job);
            self.packing.write(dir, &name, &text)
        })
        .collect()
    }

    /// Writes everything into the one file `name`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_one(&self, story: &Story, dir: &Path, name: &str) -> anyhow::Result<PathBuf> {
        let events: Vec<_> = story.events.iter().collect();
        self.packing.write(dir, name, &self.text(&events))
    }

    /// A file's text.
    #[must_use]
    pub fn text(&self, events: &[&Event]) -> String {
        let mut lines: Vec<(f64, String)> = Vec::new();
        for event in events {
            let (ts, dur) = (event.host_ts_us, event.host_dur_us);
            match self.pairs {
                Pairs::Complete => {
                    let more = format!(",\"dur\":{dur:.3}");
                    lines.push((ts, self.line(event, 'X', ts, &more)));
                }
                Pairs::Adjacent | Pairs::Apart => {
                    lines.push((ts, self.line(event, 'B', ts, "")));
                    let end = ts + dur;
                    lines.push((end, self.line(event, 'E', end, "")));
                }
            }
        }
        if self.pairs == Pairs::Apart {
            lines.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        let lines: Vec<String> = lines.into_iter().map(|(_, line)| line).collect();
        format!("[\n{}\n]\n", lines.join(",\n"))
    }

    fn line(&self, event: &Event, phase: char, ts: f64, more: &str) -> String {
        let mut args = Vec::new();
        for (key, value) in &event.args {
            args.push(format!("\"{key}\":\"{value}\""));
        }
        if let Some(charge) = event.charge {
            let shown = charge % super::clock::WRAP;
            args.push(format!("\"Power\":{}", self.values.json(shown)));
        }
        for (i, cycles) in event.shown().into_iter().flatten().enumerate() {
            args.push(format!("\"TS{}\":{}", i + 1, self.values.json(cycles)));
        }
        let mut line = String::from("{");
        if !args.is_empty() {
            let _ = write!(line, "\"{}\":{{{}}},", self.key, args.join(","));
        }
        let pid = self.first_pid + event.rank as u64;
        let _ = write!(
            line,
            "\"name\":\"{}\",\"ph\":\"{phase}\",\"pid\":{pid},\"tid\":{},\"ts\":{ts:.3}{more}}}",
            event.name,
            tid(event)
        );
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aiu_trace::scenario::Scenario;
    use serde_json::Value;

    #[test]
    fn every_form_holds_the_same() {
        let story = Scenario::default().make();
        let events: Vec<_> = story.events.iter().collect();
        for pairs in [Pairs::Complete, Pairs::Adjacent, Pairs::Apart] {
            for values in [Values::Integer, Values::Decimal, Values::Hex] {
                let flex = Flex {
                    pairs,
                    values,
                    ..Flex::default()
                };
                let list: Vec<Value> = serde_json::from_str(&flex.text(&events)).unwrap();
                let begins = list.iter().filter(|event| event["ph"] != "E");
                assert_eq!(begins.count(), events.len());
                let sum: u64 = list
                    .iter()
                    .filter(|event| event["ph"] != "E")
                    .filter_map(|event| number(&event["attr"]["TS3"]))
                    .sum();
                let truth = events.iter().filter_map(|event| event.shown());
                assert_eq!(sum, truth.map(|shown| shown[2]).sum::<u64>());
            }
        }
    }

    fn number(value: &Value) -> Option<u64> {
        let Some(text) = value.as_str() else {
            return value.as_u64();
        };
        match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => text.parse().ok(),
        }
    }
}
