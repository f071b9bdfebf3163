//! When to try again: waits that grow, with jitter, never long in all, and as long as the server asks for.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, SystemTime};

use reqwest::StatusCode;

/// How often something is tried before it fails.
const ATTEMPTS: u32 = 5;
/// The first wait; each further one is twice as long.
const FIRST: Duration = Duration::from_millis(500);
/// The waits of one request are together no longer.
const MOST: Duration = Duration::from_secs(60);

/// The tries of one request.
#[derive(Debug)]
pub(super) struct Retry {
    tried: u32,
    waited: Duration,
    patience: f64,
}

impl Retry {
    /// Begins; all waits are multiplied by `patience`.
    pub(super) fn new(patience: f64) -> Self {
        Self { tried: 1, waited: Duration::ZERO, patience }
    }

    /// Waits before another try, as long as the server `asked` for if it did; `false` if enough was tried.
    pub(super) fn pause(&mut self, asked: Option<Duration>) -> bool {
        let Some(wait) = self.next(asked, jitter()) else { return false };
        std::thread::sleep(wait.mul_f64(self.patience));
        true
    }

    /// Progress was made: what follows has its own tries.
    pub(super) fn reset(&mut self) {
        *self = Self::new(self.patience);
    }

    fn next(&mut self, asked: Option<Duration>, jitter: f64) -> Option<Duration> {
        let left = MOST.saturating_sub(self.waited);
        if self.tried >= ATTEMPTS || left.is_zero() {
            return None;
        }
        let backoff = (FIRST * 2u32.pow(self.tried - 1)).mul_f64(jitter);
        // Nobody comes back before the time that was asked for, nor do all at that very moment.
        let wait = asked.map_or(backoff, |asked| asked.saturating_add(backoff / 8)).min(left);
        self.tried += 1;
        self.waited += wait;
        Some(wait)
    }
}

/// Whether a status may be another one soon.
pub(super) fn is_transient(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 425 | 429 | 500 | 502 | 503 | 504)
}

/// Reads `Retry-After`: seconds, or a date (RFC 9110, section 10.2.3).
pub(super) fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    if !value.is_empty() && value.bytes().all(|digit| digit.is_ascii_digit()) {
        // More digits than fit are a long time too.
        return Some(value.parse().map_or(Duration::MAX, Duration::from_secs));
    }
    let date = httpdate::parse_http_date(value).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

/// A random number from 0.5 to 1.5.
fn jitter() -> f64 {
    let random = RandomState::new().build_hasher().finish();
    0.5 + (random >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_and_have_an_end() {
        let mut retry = Retry::new(1.0);
        let waits: Vec<_> = std::iter::from_fn(|| retry.next(None, 1.0)).collect();
        assert_eq!(waits, [500, 1000, 2000, 4000].map(Duration::from_millis));
        let mut retry = Retry::new(1.0);
        assert_eq!(retry.next(Some(Duration::from_secs(2)), 1.0), Some(Duration::from_micros(2_062_500)));
        assert_eq!(retry.next(Some(Duration::MAX), 1.0), Some(Duration::from_micros(57_937_500)));
        assert_eq!(retry.next(None, 1.0), None, "a minute is enough");
        assert!((0..100).all(|_| (0.5..1.5).contains(&jitter())));
    }

    #[test]
    fn servers_ask_in_seconds_or_by_date() {
        let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        let asked = |text| retry_after(text, now);
        assert_eq!(asked("2"), Some(Duration::from_secs(2)));
        assert_eq!(asked("Sun, 06 Nov 1994 08:49:40 GMT"), Some(Duration::from_secs(3)));
        assert_eq!(asked("Sun, 06 Nov 1994 08:49:30 GMT"), Some(Duration::ZERO));
        assert_eq!(asked("99999999999999999999999"), Some(Duration::MAX));
        for nonsense in ["", "soon", "-1", "1.5"] {
            assert_eq!(asked(nonsense), None, "{nonsense}");
        }
    }
}
