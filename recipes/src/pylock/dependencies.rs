//! What a distribution needs, from the METADATA of its wheel.

use std::collections::BTreeSet;

use pep508_rs::ExtraName;

use crate::marker::environment_of;
use crate::name::DistributionName;
use crate::requirement::parse_requirement;
use crate::target::Target;

/// A line of METADATA that cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{line}` in METADATA is no requirement")]
pub struct MetadataError {
    /// The line.
    pub line: String,
}

/// Returns the distributions that the METADATA of a wheel names for `target`, ordered by name.
///
/// Extras count as asked for: a lock does not say which were, and a name outside the lock means
/// nothing there (see [`Pylock::closure`](crate::Pylock::closure)).
pub fn dependencies_in_metadata(
    metadata: &str,
    target: &Target,
) -> Result<Vec<DistributionName>, MetadataError> {
    let headers = || metadata.lines().take_while(|line| !line.is_empty());
    let field = |name: &'static str| {
        headers().filter_map(move |line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    };
    let extras: Vec<ExtraName> = field("Provides-Extra").filter_map(|extra| extra.parse().ok()).collect();
    let environment = environment_of(target);
    let mut names = BTreeSet::new();
    for line in field("Requires-Dist") {
        let fail = || MetadataError { line: line.to_owned() };
        let requirement = parse_requirement(line).map_err(|_| fail())?;
        // Evaluated without extras too: `extra != "x"` is true only then.
        if requirement.marker.evaluate(&environment, &extras)
            || requirement.marker.evaluate(&environment, &[])
        {
            names.insert(requirement.name.to_string().parse().map_err(|_| fail())?);
        }
    }
    Ok(names.into_iter().collect())
}
