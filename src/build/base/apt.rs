//! apt in a directory of its own: it reads the keys and the network settings of this machine, and nothing else.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use infradev_recipes::{Architecture, DebianPackage};

use crate::build::{BuildError, io};
use crate::config::Config;
use crate::session::Session;

/// The keys that Debian signs its releases with, as the package debian-archive-keyring installs them.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// What `--mirror debian=URL` names: the Debian mirror to use in place of the machine's own.
const MIRROR: &str = "debian";

/// apt with the package lists of one release.
#[derive(Debug)]
pub(crate) struct Apt {
    configuration: PathBuf,
}

impl Apt {
    /// Fetches the package lists of `suite` into `directory`.
    pub(crate) fn update(
        session: &Session,
        directory: &Path,
        suite: &str,
        architecture: Architecture,
    ) -> Result<Self, BuildError> {
        if session.config.offline.value {
            let what = format!("the package list of Debian {suite}");
            return Err(crate::net::NetError::Offline { what }.into());
        }
        let mirror = debian_mirror(session, suite)?;
        let options = if Path::new(KEYS).exists() { format!("[signed-by={KEYS}] ") } else { String::new() };
        let configuration = directory.join("apt.conf");
        let settings = network_settings()?;
        for (name, text) in [
            ("status", String::new()),
            ("sources.list", format!("deb {options}{mirror} {suite} main\n")),
            ("apt.conf", format!("{settings}{}", private_settings(directory, architecture))),
        ] {
            let path = directory.join(name);
            fs::write(&path, text).map_err(io("write", &path))?;
        }
        for name in ["lists/partial", "cache/archives/partial", "empty"] {
            let path = directory.join(name);
            fs::create_dir_all(&path).map_err(io("create", &path))?;
        }
        let apt = Self { configuration };
        apt.output("apt-get", &["update", "-qq"])?;
        Ok(apt)
    }

    /// Returns the packages that installing `wanted` on an empty system brings.
    pub(crate) fn select(&self, wanted: &[String]) -> Result<Vec<DebianPackage>, BuildError> {
        let mut arguments = vec!["--simulate", "--quiet", "install"];
        arguments.extend(wanted.iter().map(String::as_str));
        let simulated = self.output("apt-get", &arguments)?;
        let chosen = chosen(&simulated);
        if chosen.is_empty() {
            return Ok(vec![]);
        }
        let mut arguments = vec!["show", "--no-all-versions"];
        arguments.extend(chosen.iter().map(String::as_str));
        Ok(stanzas(&self.output("apt-cache", &arguments)?))
    }

    /// Returns what the lists say of exactly these `name=version`, without those that they do not have.
    pub(crate) fn known(&self, packages: &[DebianPackage]) -> Result<Vec<DebianPackage>, BuildError> {
        let listed = self.output("apt-cache", &["dumpavail"])?;
        let mut listed = stanzas(&listed);
        listed.retain(|package| packages.contains(package));
        Ok(listed)
    }

    fn output(&self, tool: &str, arguments: &[&str]) -> Result<String, BuildError> {
        let mut command = tool_command(tool);
        command.env("APT_CONFIG", &self.configuration);
        run(tool, command.args(arguments))
    }
}

/// Returns the mirror of Debian that this machine uses, without a slash at its end.
pub(crate) fn debian_mirror(session: &Session, suite: &str) -> Result<String, BuildError> {
    let configured = session.config.mirror(MIRROR);
    if configured != MIRROR {
        return Ok(configured.trim_end_matches('/').to_owned());
    }
    let mut command = tool_command("apt-get");
    let listed = run("apt-get", command.args(["update", "--print-uris"]))?;
    let is_debian = fs::read_to_string("/etc/os-release")
        .is_ok_and(|text| text.lines().any(|line| line.trim_end() == "ID=debian"));
    mirror_in(&listed, suite, is_debian).ok_or_else(|| BuildError::Tool {
        tool: "apt-get".to_owned(),
        detail: format!("this machine's sources name no mirror of Debian {suite}"),
        hint: Some(format!("name one with --mirror {MIRROR}=URL or [mirrors] of the configuration")),
    })
}

/// Finds the mirror in the addresses that `apt-get update` would fetch: one of `suite`, or on a Debian machine that
/// of its own release.
fn mirror_in(listed: &str, suite: &str, is_debian: bool) -> Option<String> {
    let mut own = None;
    for line in listed.lines() {
        let Some(address) = line.strip_prefix('\'').and_then(|rest| rest.split('\'').next()) else {
            continue;
        };
        let Some((mirror, release)) = address.split_once("/dists/") else { continue };
        let release = release.split('/').next().unwrap_or_default();
        if release == suite {
            return Some(mirror.to_owned());
        }
        if is_debian && !release.contains('-') {
            own.get_or_insert_with(|| mirror.to_owned());
        }
    }
    own
}

/// Returns the proxies and the like of the machine's apt, as lines of a configuration.
fn network_settings() -> Result<String, BuildError> {
    let mut command = tool_command("apt-config");
    let dumped = run("apt-config", command.arg("dump"))?;
    const PREFIXES: [&str; 4] = ["Acquire::http", "Acquire::https", "Acquire::Retries", "Acquire::Force"];
    let kept = dumped.lines().filter(|line| PREFIXES.iter().any(|prefix| line.starts_with(prefix)));
    Ok(kept.map(|line| format!("{line}\n")).collect())
}

fn private_settings(directory: &Path, architecture: Architecture) -> String {
    let at = |name: &str| directory.join(name).display().to_string();
    let settings = [
        ("Dir::State", at("")),
        ("Dir::State::lists", at("lists/")),
        ("Dir::State::status", at("status")),
        ("Dir::Cache", at("cache/")),
        ("Dir::Etc::sourcelist", at("sources.list")),
        ("Dir::Etc::sourceparts", at("empty/")),
        ("Dir::Etc::parts", at("empty/")),
        ("Dir::Etc::main", "/dev/null".to_owned()),
        ("Dir::Etc::preferences", "/dev/null".to_owned()),
        ("Dir::Etc::preferencesparts", at("empty/")),
        ("APT::Architecture", architecture.debian().to_owned()),
        ("APT::Architectures", architecture.debian().to_owned()),
        ("APT::Install-Recommends", "false".to_owned()),
        ("APT::Install-Suggests", "false".to_owned()),
        // The directory may lie where no other user can reach it.
        ("APT::Sandbox::User", "root".to_owned()),
        ("Acquire::Languages", "none".to_owned()),
        ("Acquire::IndexTargets::deb::DEP-11::DefaultEnabled", "false".to_owned()),
    ];
    settings.iter().map(|(name, value)| format!("{name} \"{value}\";\n")).collect()
}

/// Returns the `name=version` of each package that a simulated installation would install.
fn chosen(simulated: &str) -> Vec<String> {
    let package = |line: &str| {
        let (name, rest) = line.strip_prefix("Inst ")?.split_once(" (")?;
        Some(format!("{}={}", name.trim(), rest.split([' ', ')']).next()?))
    };
    simulated.lines().filter_map(package).collect()
}

/// Reads the stanzas that `apt-cache show` prints.
fn stanzas(text: &str) -> Vec<DebianPackage> {
    let stanza = |stanza: &str| {
        let field = |name: &str| {
            let line = stanza.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            Some(line.trim().to_owned())
        };
        Some(DebianPackage {
            name: field("Package")?,
            version: field("Version")?,
            architecture: field("Architecture")?,
            file: field("Filename")?,
            size: field("Size")?.parse().ok()?,
            sha256: field("SHA256")?,
        })
    };
    text.split("\n\n").filter_map(stanza).collect()
}

fn tool_command(tool: &str) -> Command {
    let mut command = Command::new(tool);
    Config::clear_for_tool(&mut command);
    command.env("LC_ALL", "C.UTF-8").env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
    command
}

fn run(tool: &str, command: &mut Command) -> Result<String, BuildError> {
    let failed = |detail: String, hint: &str| BuildError::Tool {
        tool: tool.to_owned(),
        detail,
        hint: Some(hint.to_owned()),
    };
    let output = command.output().map_err(|error| {
        failed(
            error.to_string(),
            "Debian bases need apt and mmdebstrap on this machine (Debian, Ubuntu: mmdebstrap)",
        )
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let detail = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let hint = if detail.contains("NO_PUBKEY") || detail.contains("not signed") {
        "install the package debian-archive-keyring"
    } else {
        "check the name of the release and of the packages, and the network"
    };
    Err(failed(detail, hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_the_machines_own() {
        let listed = "'http://a.example/debian/dists/bookworm-updates/InRelease' x 0\n\
                      'http://a.example/debian/dists/bookworm/InRelease' x 0\n\
                      'http://b.example/d/dists/trixie/InRelease' x 0\n";
        let check = |suite, is_debian, expected: Option<&str>| {
            assert_eq!(mirror_in(listed, suite, is_debian).as_deref(), expected, "{suite}");
        };
        check("trixie", false, Some("http://b.example/d"));
        check("forky", true, Some("http://a.example/debian"));
        check("forky", false, None);
    }

    #[test]
    fn apt_output_is_read() {
        let simulated = "Reading package lists...\nInst gcc-12-base (12.2.0-14+deb12u1 Debian:12.15/oldstable [amd64])\n\
                         Inst libc6 (2.36-9 x [amd64]) []\nConf libc6 (2.36-9 x [amd64])\n";
        assert_eq!(chosen(simulated), ["gcc-12-base=12.2.0-14+deb12u1", "libc6=2.36-9"]);
        let shown = "Package: libc6\nArchitecture: amd64\nVersion: 2.36-9\nDescription: x\n SHA256: no\n\
                     Filename: pool/main/g/glibc/libc6_2.36-9_amd64.deb\nSize: 12\nMD5sum: 1\nSHA256: ab\n\n\
                     Package: broken\n";
        let packages = stanzas(shown);
        assert_eq!(packages.len(), 1);
        assert_eq!((packages[0].size, packages[0].sha256.as_str()), (12, "ab"));
    }
}
