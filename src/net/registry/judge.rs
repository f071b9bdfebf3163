//! What an answer that is not the hoped-for one means.

use reqwest::StatusCode;

use super::Registry;
use crate::net::error::NetError;
use crate::net::http::Answer;

/// No explanation of an error is read further.
const MAX_SAID: u64 = 64 << 10;

impl Registry {
    /// Makes an error of an answer.
    pub(super) fn refused(&self, answer: Answer<'_>, doing: &str) -> NetError {
        let status = answer.status();
        let own = self.base.get().is_some_and(|base| base.origin() == answer.url().origin());
        let host = if own { self.host.clone() } else { super::host_of(answer.url()) };
        let said = said(answer);
        let doing = doing.to_owned();
        if own && matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            return NetError::Denied { host, doing, status, said, known: self.has_credentials() };
        }
        NetError::Refused { host, doing, status, said }
    }
}

/// What an answer says about why it is no other.
pub(super) fn said(answer: Answer<'_>) -> String {
    answer.bytes(MAX_SAID).map(|body| explanation(&body)).unwrap_or_default()
}

/// Reads the first error of a registry's list (OCI distribution specification, "Error Codes").
fn explanation(body: &[u8]) -> String {
    let list: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let first = &list["errors"][0];
    let words = [&first["code"], &first["message"]].map(|word| word.as_str().unwrap_or_default());
    let words = words.map(plain).into_iter().filter(|word| !word.is_empty());
    words.map(|word| format!(": {word}")).collect()
}

/// A text from elsewhere in one short line.
pub(super) fn plain(text: &str) -> String {
    let line: String =
        text.chars().map(|character| if character.is_control() { ' ' } else { character }).collect();
    line.trim().chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explanations_are_one_short_line() {
        let body = br#"{"errors":[{"code":"DENIED","message":"no\u001b[31m\nway","detail":{}}]}"#;
        assert_eq!(explanation(body), ": DENIED: no [31m way");
        assert_eq!(explanation(b"<html>"), "");
        assert_eq!(explanation(br#"{"errors":[]}"#), "");
        assert_eq!(explanation(br#"{"errors":[{"code":7,"message":"x"}]}"#), ": x");
        assert_eq!(plain(&"x".repeat(1000)).len(), 300);
    }
}
