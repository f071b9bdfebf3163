//! Requirements as PEP 508 writes them: `name[extra]==1.0; marker`.

use pep508_rs::{Requirement, VerbatimUrl};

/// Reads a requirement; the error says what is wrong with it.
pub(crate) fn parse_requirement(text: &str) -> Result<Requirement<VerbatimUrl>, String> {
    // `pep508_rs` 0.9 panics where a name that it took turns out to be none.
    if !is_well_named(text) {
        return Err("a name must begin and end with a letter or digit".to_owned());
    }
    text.parse().map_err(|error: pep508_rs::Pep508Error<VerbatimUrl>| error.message.to_string())
}

/// Whether the name, and the extras in brackets after it, are names (PEP 508, "Names").
fn is_well_named(text: &str) -> bool {
    let may_be_inside =
        |character: char| character.is_ascii_alphanumeric() || matches!(character, '.' | '-' | '_');
    let is_name = |name: &str| {
        let is_end = |character: char| character.is_ascii_alphanumeric();
        name.starts_with(is_end) && name.ends_with(is_end) && name.chars().all(may_be_inside)
    };
    let text = text.trim_start();
    let end = text.find(|character| !may_be_inside(character)).unwrap_or(text.len());
    let rest = text[end..].trim_start();
    let extras = rest.strip_prefix('[').map_or("", |rest| rest.split(']').next().unwrap_or_default());
    let mut extras = extras.split(',').map(str::trim).filter(|extra| !extra.is_empty());
    is_name(&text[..end]) && extras.all(is_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_names_are_refused_and_not_panicked_over() {
        for good in [
            "numpy",
            "numpy==2.0",
            "a.b-c_d [x, y-z] >= 1; python_version < '3.10'",
            "x[]",
            "x @ https://a/b.whl",
        ] {
            assert!(parse_requirement(good).is_ok(), "{good}");
        }
        for bad in ["numpy2.=.=26", "numpy-; x", "", ".x", "x[a.]", "x[a., b]", "x[-a]==1", "x[a", "n\u{e9}"]
        {
            assert!(parse_requirement(bad).is_err(), "{bad}");
        }
    }
}
