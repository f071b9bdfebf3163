//! File names of wheels, and how well each suits a target.
//!
//! The order is that of pip and `packaging.tags` for CPython on glibc: the closest interpreter first,
//! then the newest platform that the target's glibc still satisfies (PEP 425, 600 and 656).

use std::cmp::Reverse;
use std::str::FromStr;

use crate::name::DistributionName;
use crate::target::{Architecture, Target};

/// A wheel as its file name describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WheelName {
    /// The distribution.
    pub distribution: DistributionName,
    /// The version, as written.
    pub version: String,
    /// The build tag: a number and the rest.
    pub build: Option<(u64, String)>,
    /// The interpreters, ABIs and platforms of the compressed tag set.
    pub tags: [Vec<String>; 3],
}

/// A file name that is no wheel's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not the file name of a wheel: expected name-version[-build]-python-abi-platform.whl")]
pub struct WheelNameError(pub String);

/// How well a wheel suits a target; the smallest is the best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WheelRank {
    interpreter: usize,
    platform: usize,
}

impl FromStr for WheelName {
    type Err = WheelNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = || WheelNameError(text.to_owned());
        let stem = text.strip_suffix(".whl").ok_or_else(fail)?;
        let parts: Vec<&str> = stem.split('-').collect();
        let (name, version, build, tags) = match parts[..] {
            [name, version, python, abi, platform] => (name, version, None, [python, abi, platform]),
            [name, version, build, python, abi, platform] => {
                (name, version, Some(build), [python, abi, platform])
            }
            _ => return Err(fail()),
        };
        if stem.contains(['/', '\0']) || parts.iter().any(|part| part.is_empty()) {
            return Err(fail());
        }
        let build = match build {
            Some(build) => {
                let digits = build.find(|c: char| !c.is_ascii_digit()).unwrap_or(build.len());
                let (number, rest) = build.split_at(digits);
                Some((number.parse().map_err(|_| fail())?, rest.to_owned()))
            }
            None => None,
        };
        Ok(Self {
            distribution: name.parse().map_err(|_| fail())?,
            version: version.to_owned(),
            build,
            tags: tags.map(|tag| tag.split('.').map(str::to_owned).collect()),
        })
    }
}

impl WheelName {
    /// Says how well the wheel suits `target`, or nothing when it does not run there.
    pub fn rank(&self, target: &Target) -> Option<WheelRank> {
        let [pythons, abis, platforms] = &self.tags;
        let ranks = pythons.iter().flat_map(|python| {
            abis.iter().flat_map(move |abi| platforms.iter().map(move |platform| (python, abi, platform)))
        });
        ranks.filter_map(|(python, abi, platform)| rank_of(python, abi, platform, target)).min()
    }
}

/// Returns the index of the wheel that suits `target` best; equals are settled by the build tag, then
/// by the order given.
pub fn best_wheel<'a>(names: impl IntoIterator<Item = &'a WheelName>, target: &Target) -> Option<usize> {
    let ranked =
        names.into_iter().enumerate().filter_map(|(index, name)| Some((index, name, name.rank(target)?)));
    ranked.min_by_key(|(_, name, rank)| (*rank, Reverse(&name.build))).map(|(index, _, _)| index)
}

fn rank_of(python: &str, abi: &str, platform: &str, target: &Target) -> Option<WheelRank> {
    let own = target.python.tag();
    let minor = usize::from(target.python.minor);
    let platform = rank_of_platform(platform, target);
    let older = |prefix: &str| {
        python.strip_prefix(prefix).and_then(|rest| rest.parse::<usize>().ok()).filter(|older| *older < minor)
    };
    // Each class below comes before the next; 100 minor versions fit between two.
    let interpreter = match (abi, platform) {
        (abi, Some(_)) if abi == own && python == own => 0,
        ("abi3", Some(_)) if python == own => 1,
        ("none", Some(_)) if python == own => 2,
        // The stable ABI begins with CPython 3.2.
        ("abi3", Some(_)) => 100 + minor - older("cp3").filter(|older| *older >= 2)?,
        ("none", Some(Platform::Native(_))) => 200 + rank_of_generic(python, minor)?,
        ("none", Some(Platform::Any)) => 300 + rank_of_generic(python, minor)?,
        _ => return None,
    };
    let (interpreter, platform) = match platform? {
        Platform::Native(rank) => (interpreter, rank),
        // `cpXY-none-any` comes right before the generic ones; other ABIs name a platform.
        Platform::Any if abi == "none" => (if python == own { 300 } else { interpreter }, 0),
        Platform::Any => return None,
    };
    Some(WheelRank { interpreter, platform })
}

/// Ranks `py3.11`'s list `py311, py3, py310, …, py30`, from one on.
fn rank_of_generic(python: &str, minor: usize) -> Option<usize> {
    if python == "py3" {
        return Some(2);
    }
    let of: usize = python.strip_prefix("py3")?.parse().ok()?;
    match minor.checked_sub(of)? {
        0 => Some(1),
        behind => Some(2 + behind),
    }
}

#[derive(Clone, Copy)]
enum Platform {
    Any,
    Native(usize),
}

fn rank_of_platform(platform: &str, target: &Target) -> Option<Platform> {
    if platform == "any" {
        return Some(Platform::Any);
    }
    let family = platform.strip_suffix(target.architecture.as_str())?.strip_suffix('_')?;
    let (legacy, version) = match family {
        "linux" => return Some(Platform::Native(usize::MAX)),
        "manylinux1" => (1, "2_5"),
        "manylinux2010" => (1, "2_12"),
        "manylinux2014" => (1, "2_17"),
        _ => (0, family.strip_prefix("manylinux_")?),
    };
    let (major, minor) = version.split_once('_')?;
    let glibc: (u16, u16) = (major.parse().ok()?, minor.parse().ok()?);
    // Below these versions the policies do not exist for the processor (PEP 600).
    let oldest = match target.architecture {
        Architecture::X86_64 => (2, 5),
        Architecture::Aarch64 => (2, 17),
    };
    let fits = glibc >= oldest && glibc.0 == target.glibc.0 && glibc <= target.glibc;
    fits.then(|| Platform::Native(usize::from(target.glibc.1 - glibc.1) * 2 + legacy))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Target = Target {
        python: crate::PythonVersion { major: 3, minor: 11 },
        architecture: Architecture::X86_64,
        glibc: (2, 36),
    };

    /// Wheels of one distribution from best to worst, as `packaging.tags` orders them.
    const ORDERED: [&str; 15] = [
        "a-1-cp311-cp311-manylinux_2_36_x86_64.whl",
        "a-1-cp311-cp311-manylinux_2_28_x86_64.manylinux_2_17_x86_64.whl",
        "a-1-cp311-cp311-manylinux_2_17_x86_64.whl",
        "a-1-cp311-cp311-manylinux2014_x86_64.whl",
        "a-1-cp311-cp311-manylinux1_x86_64.whl",
        "a-1-cp311-cp311-linux_x86_64.whl",
        "a-1-cp311-abi3-linux_x86_64.whl",
        "a-1-cp311-none-linux_x86_64.whl",
        "a-1-cp310-abi3-manylinux_2_28_x86_64.whl",
        "a-1-cp38-abi3-manylinux_2_28_x86_64.whl",
        "a-1-py3-none-manylinux_2_28_x86_64.whl",
        "a-1-py310-none-linux_x86_64.whl",
        "a-1-cp311-none-any.whl",
        "a-1-py2.py3-none-any.whl",
        "a-1-py38-none-any.whl",
    ];

    #[test]
    fn the_closest_wheel_comes_first() {
        let rank = |text: &str| text.parse::<WheelName>().expect(text).rank(&TARGET).expect(text);
        for pair in ORDERED.windows(2) {
            assert!(rank(pair[0]) < rank(pair[1]), "{} before {}", pair[0], pair[1]);
        }
    }

    #[test]
    fn a_wheel_for_another_machine_has_no_rank() {
        for text in [
            "a-1-cp312-cp312-manylinux_2_17_x86_64.whl",
            "a-1-cp311-cp311-manylinux_2_39_x86_64.whl",
            "a-1-cp311-cp311-manylinux_2_17_aarch64.whl",
            "a-1-cp311-cp311-musllinux_1_2_x86_64.whl",
            "a-1-cp311-cp311t-manylinux_2_17_x86_64.whl",
            "a-1-cp312-abi3-manylinux_2_17_x86_64.whl",
            "a-1-cp311-cp311-win_amd64.whl",
            "a-1-cp311-cp311-any.whl",
            "a-1-py312-none-any.whl",
            "a-1-py2-none-any.whl",
        ] {
            assert_eq!(text.parse::<WheelName>().expect(text).rank(&TARGET), None, "{text}");
        }
    }

    #[test]
    fn the_higher_build_wins_between_equals() {
        let names = ["a-1-2-py3-none-any.whl", "a-1-10x-py3-none-any.whl", "a-1-py3-none-any.whl"];
        let names = names.map(|name| name.parse::<WheelName>().expect(name));
        assert_eq!(best_wheel(&names, &TARGET), Some(1));
        for bad in [
            "a-1.whl",
            "a-1-py3-none-any.zip",
            "a-1-x-py3-none-any.whl",
            "a/b-1-py3-none-any.whl",
            "a--py3-none-any.whl",
        ] {
            assert!(bad.parse::<WheelName>().is_err(), "{bad}");
        }
    }
}
