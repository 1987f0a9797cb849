//! The time of day in words, in UTC: ranks on several continents have one clock.

use std::time::{SystemTime, UNIX_EPOCH};

/// `2026-11-15 07:03:21.042`.
pub(super) fn stamp(at: SystemTime) -> String {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second_of_day) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second_of_day / 3600, second_of_day / 60 % 60, second_of_day % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{:03}", since.subsec_millis())
}

/// Year, month and day of a number of days since 1970-01-01. Years are counted from March here, so that the leap day is
/// the last of a year; 400 of them always have 146,097 days.
fn civil(days: u64) -> (u64, u64, u64) {
    let from_march_0000 = days + 719_468;
    let (era, day_of_era) = (from_march_0000 / 146_097, from_march_0000 % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn days_have_their_names() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00.000"),
            (951_782_400, "2000-02-29 00:00:00.000"),
            (1_709_251_199, "2024-02-29 23:59:59.000"),
            (1_794_726_201, "2026-11-15 07:03:21.000"),
            (4_107_542_400, "2100-03-01 00:00:00.000"),
        ] {
            assert_eq!(stamp(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }
}
