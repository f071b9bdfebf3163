//! Moments, to the second, as recipes write them.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};
use toml::value::{Datetime, Offset};

/// A moment in whole seconds since 1970, written in RFC 3339.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

/// A string that is not a moment: a date without time or offset is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a moment: expected RFC 3339 such as `2025-09-24T06:27:05Z`")]
pub struct TimestampError(pub String);

impl Timestamp {
    /// Takes seconds since 1970 as a moment.
    pub const fn from_seconds(seconds: i64) -> Self {
        Self(seconds)
    }

    /// Returns seconds since 1970, for `SOURCE_DATE_EPOCH`.
    pub const fn seconds(self) -> i64 {
        self.0
    }

    pub(crate) fn from_toml(moment: &Datetime) -> Option<Self> {
        let (date, time, offset) = (moment.date?, moment.time?, moment.offset?);
        let offset = match offset {
            Offset::Z => 0,
            Offset::Custom { minutes } => i64::from(minutes) * 60,
        };
        let days = days_before(i64::from(date.year), i64::from(date.month), i64::from(date.day));
        let minutes = i64::from(time.hour) * 60 + i64::from(time.minute);
        let seconds = minutes * 60 + i64::from(time.second.unwrap_or(0));
        Some(Self(days * 86_400 + seconds - offset))
    }
}

/// Counts the days from 1970 to a date of the Gregorian calendar: Hinnant's `days_from_civil`,
/// <https://howardhinnant.github.io/date_algorithms.html>.
fn days_before(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// The inverse of [`days_before`]: Hinnant's `civil_from_days`.
fn date_after(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day = days.rem_euclid(146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    (year, month, day_of_year - (153 * shifted + 2) / 5 + 1)
}

impl FromStr for Timestamp {
    type Err = TimestampError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let moment = text.parse::<Datetime>().ok().and_then(|moment| Self::from_toml(&moment));
        moment.ok_or_else(|| TimestampError(text.to_owned()))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = date_after(self.0.div_euclid(86_400));
        let second = self.0.rem_euclid(86_400);
        let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_date_u() {
        // The left column is the output of `date -u -d RIGHT +%s`.
        let cases = [
            (0, "1970-01-01T00:00:00Z"),
            (1_758_695_225, "2025-09-24T06:27:05Z"),
            (1_709_164_800, "2024-02-29T00:00:00Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
        ];
        for (seconds, text) in cases {
            assert_eq!(text.parse(), Ok(Timestamp(seconds)), "{text}");
            assert_eq!(Timestamp(seconds).to_string(), text);
        }
        assert_eq!("2025-09-24T08:27:05+02:00".parse(), Ok(Timestamp(1_758_695_225)));
        assert!("2025-09-24".parse::<Timestamp>().is_err());
    }
}
