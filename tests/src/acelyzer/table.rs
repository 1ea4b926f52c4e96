//! CSV files and tables.

/// The cells of a line: separated by commas, else by tabs, without the spaces around
/// them; else by spaces.
fn cells(line: &str) -> Vec<&str> {
    if line.contains('\t') {
        return line.split('\t').map(str::trim).collect();
    }
    if line.contains(',') {
        return line.split(',').map(str::trim).collect();
    }
    line.split_whitespace().collect()
}

/// All differences between two tables, one line each. The order of lines counts.
#[must_use]
pub fn differences(theirs: &str, ours: &str) -> Vec<String> {
    let mut found = Vec::new();
    let (theirs, ours): (Vec<_>, Vec<_>) = (theirs.lines().collect(), ours.lines().collect());
    if theirs.len() != ours.len() {
        found.push(format!("{} lines there, {} here", theirs.len(), ours.len()));
    }
    for (number, (a, b)) in theirs.iter().zip(&ours).enumerate() {
        let (x, y) = (cells(a), cells(b));
        let equal = x.len() == y.len() && x.iter().zip(&y).all(|(x, y)| same(x, y));
        if !equal {
            found.push(format!("line {}:\n  there {a}\n  here  {b}", number + 1));
        } else if number == 0 && a.contains(['\t', ',']) && a != b {
            found.push(format!("heading:\n  there {a:?}\n  here  {b:?}"));
        } else if a.contains('\t') && a.len() != b.len() {
            found.push(format!(
                "widths, line {}:\n  there {a:?}\n  here  {b:?}",
                number + 1
            ));
        }
    }
    found
}

fn same(a: &str, b: &str) -> bool {
    let (Ok(x), Ok(y)) = (a.parse::<f64>(), b.parse::<f64>()) else {
        return a == b;
    };
    if a.contains("e+") {
        // Shortened there.
        return (x - y).abs() <= 1e-6 * x.abs();
    }
    // Whole numbers are counts; of others the last digit may be rounded otherwise.
    let whole = !a.contains('.') && !b.contains('.');
    let digits = |text: &str| text.split_once('.').map_or(0, |(_, digits)| digits.len());
    let step = 10f64.powi(-(digits(a).min(digits(b)).min(3) as i32));
    if whole {
        // Cycles are cut off from products of doubles.
        x == y || (x > 10_000.0 && (x - y).abs() <= 1.0)
    } else {
        (x - y).abs() <= 1.01 * step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_compared_by_value() {
        let table = "Time  \t Calls\t Name\n 1.234\t    7\t a b\n";
        assert_eq!(
            differences(table, &table.replace("1.234", "1.235")),
            [""; 0]
        );
        for (from, to) in [
            ("1.234", "1.236"),
            ("7", "8"),
            ("a b", "a c"),
            ("Name", "name"),
        ] {
            assert_eq!(
                differences(table, &table.replace(from, to)).len(),
                1,
                "{from}"
            );
        }
        assert_eq!(differences("a,1.0\n", "a,1.2\n").len(), 1);
    }
}
