//! Lines of a page's plots, as data that its script draws, and as a table.

use super::escape;
use super::table::{self, ROWS, cut};
use aiprof_trace::analyze::plots::{Point, Series, thin};
use aiprof_trace::analyze::report::Report;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Points of all lines together; a page stays below some megabytes.
const POINTS: usize = 120_000;
/// Points that a line may have however many lines there are.
const LEAST: usize = 100;

/// The section: a place for the plots, and what they show in numbers.
pub(super) fn body(report: &Report) -> Option<String> {
    if report.series.is_empty() {
        return None;
    }
    let mut out = String::from(
        "<p class=\"how\" id=\"how\" hidden>Drag over a plot to zoom all plots, double-click to \
         show everything again. Keyboard: arrows move, + and \u{2212} zoom, 0 shows \
         everything.</p>\n\
         <button type=\"button\" id=\"whole\" hidden disabled>Show all</button>\n\
         <div id=\"charts\"></div>\n<noscript><p>The plots need JavaScript. Their \
         numbers follow.</p></noscript>\n<details><summary>The plots in numbers</summary>\n",
    );
    let series = aiprof_tables::report::SERIES.first(report, ROWS + 1);
    table::write(&series, false, &mut out);
    out.push_str("</details>\n");
    let has_band = |line: &&Series| line.points.iter().any(|point| point.1 < point.3);
    let thinned = report.series.iter().filter(has_band).count();
    if thinned > 0 {
        let _ = writeln!(
            out,
            "<p class=\"cut\">{thinned} of {} lines have more readings than can be drawn. They \
             show the mean, and around it a band from the lowest to the highest value.</p>",
            report.series.len()
        );
    }
    cut(report.series_left_out, "counters", &mut out);
    Some(out)
}

/// The data for the script, as content of a `script` element.
pub(super) fn data(report: &Report) -> String {
    let most = (POINTS / report.series.len().max(1)).max(LEAST);
    let mut plots: Vec<(&Series, Vec<Value>)> = Vec::new();
    for series in &report.series {
        let same = |first: &Series| first.name == series.name && first.unit == series.unit;
        let line = line(series, most);
        // Lines of a counter follow each other.
        match plots.last_mut().filter(|(first, _)| same(first)) {
            Some((_, lines)) => lines.push(line),
            None => plots.push((series, vec![line])),
        }
    }
    let plots: Vec<Value> = plots
        .into_iter()
        .map(|(first, lines)| {
            json!({
                "name": escape::plain(&first.name),
                "about": about(&first.name),
                "unit": escape::plain(&first.unit),
                "lines": lines,
            })
        })
        .collect();
    let data = json!({"elapsed": digits(report.elapsed_us, 3), "plots": plots});
    escape::json(&data.to_string())
}

fn line(series: &Series, most: usize) -> Value {
    let points = thin(&series.points, most);
    let has_band = points.iter().any(|point| point.1 < point.3);
    let column = |value: fn(&Point) -> f64| -> Vec<f64> {
        points
            .iter()
            .map(|point| significant(value(point)))
            .collect()
    };
    let label = series
        .rank
        .map_or("all".to_owned(), |rank| format!("rank {rank}"));
    let times: Vec<f64> = points.iter().map(|point| digits(point.0, 3)).collect();
    let mut line = json!({"label": label, "t": times, "mid": column(|p| p.2)});
    if let Some(line) = line.as_object_mut().filter(|_| has_band) {
        line.insert("low".to_owned(), column(|p| p.1).into());
        line.insert("high".to_owned(), column(|p| p.3).into());
    }
    line
}

/// What our own counters are.
fn about(name: &str) -> &'static str {
    match name {
        "Device busy" => "Share of the time in which kernels ran",
        "Power" => "Power from the device's charge counter",
        "PT Active" => "Utilization: the compiler's ideal time in percent of the measured time",
        "ConcurrentPreps" => "Kernel preparations in progress",
        "BW DmaI" => "Bandwidth to the device",
        "BW DmaO" => "Bandwidth from the device",
        "TransferBW" => "Bandwidth of transfers, as given in the trace",
        "Coll_Bandwidth" | "BW allreduce" => "Bandwidth of collectives",
        _ => "",
    }
}

fn digits(value: f64, digits: i32) -> f64 {
    let factor = 10f64.powi(digits);
    let rounded = (value * factor).round() / factor;
    if rounded.is_finite() { rounded } else { value }
}

/// Six digits are more than can be seen.
fn significant(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_six_digits() {
        assert_eq!(significant(123_456_789.0), 123_457_000.0);
        assert_eq!(significant(-0.000_123_456_49), -0.000_123_456);
        assert_eq!(significant(0.0), 0.0);
        assert_eq!(digits(1.23456, 3), 1.235);
        assert_eq!(digits(1e307, 3), 1e307);
    }

    #[test]
    fn lines_of_a_counter_are_one_plot() {
        let series = |name: &str, rank, points: &[Point]| Series {
            name: name.to_owned(),
            unit: "W".to_owned(),
            rank,
            readings: points.len(),
            points: points.to_vec(),
        };
        let report = Report {
            elapsed_us: 7.0,
            series: vec![
                series("a</script>", Some(0), &[(1.0, 2.0, 2.0, 2.0)]),
                series("a</script>", Some(1), &[(1.0, 1.0, 2.0, 3.0)]),
                series("b", None, &[]),
            ],
            ..Report::default()
        };
        let text = data(&report);
        assert!(!text.contains('<'), "{text}");
        let data: Value = serde_json::from_str(&text).unwrap();
        let want = json!({"elapsed": 7.0, "plots": [
            {"name": "a</script>", "about": "", "unit": "W", "lines": [
                {"label": "rank 0", "t": [1.0], "mid": [2.0]},
                {"label": "rank 1", "t": [1.0], "mid": [2.0], "low": [1.0], "high": [3.0]},
            ]},
            {"name": "b", "about": "", "unit": "W", "lines": [
                {"label": "all", "t": [], "mid": []},
            ]},
        ]});
        assert_eq!(data, want);
    }
}
