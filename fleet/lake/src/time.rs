//! Days and hours, in UTC.

/// Nanoseconds of a microsecond: the lake's times are in these.
pub const NS_PER_US: i64 = 1000;
/// Nanoseconds of an hour.
pub const HOUR_NS: u64 = 3600 * 1_000_000_000;
/// Nanoseconds of a day.
pub const DAY_NS: u64 = 24 * HOUR_NS;

/// Days since the Unix epoch at a time in nanoseconds since then.
pub fn day_of(unix_ns: u64) -> u32 {
    u32::try_from(unix_ns / DAY_NS).unwrap_or(u32::MAX)
}

/// Hour of the day, 0 to 23.
pub fn hour_of(unix_ns: u64) -> u32 {
    u32::try_from(unix_ns % DAY_NS / HOUR_NS).unwrap_or(0)
}

/// `YYYY-MM-DD` of a day since the Unix epoch. The calendar repeats each 400 years, of 146,097
/// days, and is counted from March on so that leap days are at the end.
pub fn date(day: u32) -> String {
    let shifted = u64::from(day) + 719_468;
    let era = shifted / 146_097;
    let of_era = shifted % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = match month_from_march < 10 {
        true => month_from_march + 3,
        false => month_from_march - 9,
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

/// The day of `YYYY-MM-DD`; `None`: it is none, or before 1970.
pub fn parse_date(text: &str) -> Option<u32> {
    let mut parts = text.split('-');
    let mut part = |digits: usize| -> Option<u64> {
        let part = parts.next()?;
        let is_number = part.len() == digits && part.bytes().all(|byte| byte.is_ascii_digit());
        part.parse().ok().filter(|_| is_number)
    };
    let (year, month, day) = (part(4)?, part(2)?, part(2)?);
    if parts.next().is_some() || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let year = year.checked_sub(u64::from(month <= 2))?;
    let (era, year_of_era) = (year / 400, year % 400);
    let month_from_march = (month + 9) % 12;
    let of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year;
    let days = (era * 146_097 + of_era).checked_sub(719_468)?;
    let days = u32::try_from(days).ok()?;
    // The 31st of a month of 30 days.
    (date(days) == text).then_some(days)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_have_dates() {
        for (day, text) in [
            (0, "1970-01-01"),
            (59, "1970-03-01"),
            (11_016, "2000-02-29"),
            (11_017, "2000-03-01"),
            (20_783, "2026-11-26"),
            (47_540, "2100-02-28"),
            (47_541, "2100-03-01"),
        ] {
            assert_eq!(date(day), text);
            assert_eq!(parse_date(text), Some(day));
        }
        for day in 0..60_000 {
            assert_eq!(parse_date(&date(day)), Some(day));
        }
        for wrong in [
            "",
            "2026-02-30",
            "2026-13-01",
            "26-01-01",
            "2026-01-01-",
            "1969-12-31",
        ] {
            assert_eq!(parse_date(wrong), None, "{wrong}");
        }
        assert_eq!(hour_of(13 * HOUR_NS + DAY_NS), 13);
    }
}
