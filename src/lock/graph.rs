//! Which package needs which: read from the resolver's annotations, the only place where it tells.

use std::collections::BTreeMap;

use infradev_recipes::{DistributionName, Package};

/// Fills in what each package needs from `annotated`, a requirements file in which uv wrote below each pin the
/// packages that it came for. Needs stay unknown when the pins are not those of `packages`.
pub(super) fn fill_dependencies(packages: &mut [Package], annotated: &str) {
    let pins = read(annotated);
    let agrees = packages
        .iter()
        .all(|package| pins.iter().any(|pin| pin.name == package.name && pin.version == package.version));
    if !agrees || pins.len() != packages.len() {
        return;
    }
    let mut needs: BTreeMap<&DistributionName, Vec<DistributionName>> = BTreeMap::new();
    for pin in &pins {
        for needed_by in &pin.needed_by {
            needs.entry(needed_by).or_default().push(pin.name.clone());
        }
    }
    for package in packages {
        let mut needs = needs.remove(&package.name).unwrap_or_default();
        // An extra of a package counts as the package.
        needs.retain(|need| *need != package.name);
        needs.sort();
        needs.dedup();
        package.dependencies = Some(needs);
    }
}

/// A line `name==version`, and what stands below it.
#[derive(Debug)]
struct Pin {
    name: DistributionName,
    version: String,
    needed_by: Vec<DistributionName>,
}

fn read(annotated: &str) -> Vec<Pin> {
    let mut pins: Vec<Pin> = vec![];
    for line in annotated.lines() {
        match line.trim_start().strip_prefix('#') {
            None => pins.extend(read_pin(line)),
            Some(comment) => {
                let comment = comment.trim();
                let from = comment.strip_prefix("via").unwrap_or(comment).trim();
                // What came from a file (`-r pins.in`) is no distribution, and is needed by none.
                if let (Some(pin), Some(name)) = (pins.last_mut(), distribution(from)) {
                    pin.needed_by.push(name);
                }
            }
        }
    }
    pins
}

fn read_pin(line: &str) -> Option<Pin> {
    let (name, version) = line.split_once("==")?;
    let version = version.split([' ', ';']).next()?.to_owned();
    Some(Pin { name: distribution(name.trim())?, version, needed_by: vec![] })
}

/// Reads a name with or without extras.
fn distribution(text: &str) -> Option<DistributionName> {
    text.split('[').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use infradev_recipes::{Archive, Artifact};

    use super::*;

    const ANNOTATED: &str = "\
aiohttp==3.12.15
    # via
    #   fsspec
    #   ray
fsspec==2025.9.0
    # via -r pins.in
ray[default]==2.49.2
    # via
    #   -r pins.in
    #   ray
";

    fn packages(aiohttp: &str) -> Vec<Package> {
        let package = |(name, version): (&str, &str)| Package {
            name: name.parse().unwrap(),
            version: version.to_owned(),
            dependencies: None,
            artifact: Artifact::Wheel(Archive {
                name: "x".to_owned(),
                size: None,
                sha256: String::new(),
                url: None,
            }),
        };
        [("aiohttp", aiohttp), ("fsspec", "2025.9.0"), ("ray", "2.49.2")].map(package).to_vec()
    }

    #[test]
    fn edges_are_turned_round() {
        let mut packages = packages("3.12.15");
        fill_dependencies(&mut packages, ANNOTATED);
        let needs: Vec<Vec<&str>> = packages
            .iter()
            .map(|package| package.dependencies.iter().flatten().map(DistributionName::as_str).collect())
            .collect();
        assert_eq!(needs, [vec![], vec!["aiohttp"], vec!["aiohttp"]]);
    }

    #[test]
    fn another_resolution_tells_nothing() {
        let mut packages = packages("3.12.0");
        fill_dependencies(&mut packages, ANNOTATED);
        assert!(packages.iter().all(|package| package.dependencies.is_none()));
    }
}
