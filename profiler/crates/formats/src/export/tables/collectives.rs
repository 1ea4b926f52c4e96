//! Active time of ranks with collectives, as acelyzer's `_stats_summary.csv`.

use aiprof_trace::analyze::collectives::ActiveRow;
use std::io::{self, Write};

/// Rank, elapsed time, time of kernels and of collectives (microseconds), their shares
/// in the time (0 to 1); what is not known is empty.
///
/// # Errors
/// As `out`.
pub(crate) fn write_active(out: &mut impl Write, rows: &[ActiveRow]) -> io::Result<()> {
    writeln!(
        out,
        "pid,elapsed_time,comp_active_atime,comm_active_atime,comp_active_atime_perc,\
         comm_active_atime_perc"
    )?;
    let number = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:?}"));
    for row in rows {
        writeln!(
            out,
            "{},{:?},{:?},{},{},{}",
            row.rank,
            row.elapsed_us,
            row.compute_us,
            number(row.communication_us),
            number(row.compute_share()),
            number(row.communication_share())
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_empty() {
        let rows = [
            ActiveRow {
                rank: 0,
                elapsed_us: 100.0,
                compute_us: 25.0,
                communication_us: Some(12.5),
            },
            ActiveRow {
                rank: 3,
                ..ActiveRow::default()
            },
        ];
        let mut out = Vec::new();
        write_active(&mut out, &rows).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(lines, ["0,100.0,25.0,12.5,0.25,0.125", "3,0.0,0.0,,,"]);
    }
}
