//! What a run sees, as an OCI runtime specification: a pure function, no input or output.
//!
//! The built-in launcher carries out exactly what the specification says, so hardening is a change here, and
//! the same value can be handed to another runtime. Fields are those of the OCI runtime specification,
//! config.md and config-linux.md.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use oci_spec::OciSpecError;
use oci_spec::runtime::{
    LinuxBuilder, LinuxCapabilities, LinuxIdMapping, LinuxIdMappingBuilder, LinuxNamespaceBuilder,
    LinuxNamespaceType, Mount, MountBuilder, PosixRlimitBuilder, PosixRlimitType, ProcessBuilder,
    RootBuilder, Spec, SpecBuilder, UserBuilder,
};

/// How user ids inside a run relate to those outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mapping {
    /// The same: environments that are mounted for the whole host.
    Host,
    /// 0 to 65535 inside are the 65536 ids from this one on outside.
    Range(u32),
    /// 0 inside is the caller; nobody else exists.
    Caller {
        /// The caller's user id.
        uid: u32,
        /// The caller's group id.
        gid: u32,
    },
}

impl Mapping {
    /// The first id of the range that runs by root are mapped to.
    pub const RANGE: u32 = 1_000_000;
    /// How many ids the range has: all that a 16-bit id can name.
    pub const RANGE_LENGTH: u32 = 65_536;

    /// Returns how the owners of files on disk become those that a run sees.
    pub fn owners(self) -> infradev_layers::Owners {
        use infradev_layers::Owners;
        match self {
            Mapping::Host => Owners::Keep,
            Mapping::Range(first) => Owners::Shifted(first),
            Mapping::Caller { .. } => Owners::Root,
        }
    }
}

/// Whether a run shares the host's network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Network {
    /// A network of its own with nothing but loopback.
    #[default]
    None,
    /// The host's.
    Host,
}

/// A directory or file of the host that a run sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bind {
    /// Where it is on the host.
    pub source: PathBuf,
    /// Where the run sees it.
    pub destination: PathBuf,
    /// Whether the run may change it.
    pub writable: bool,
}

impl Bind {
    /// Shows `source` read-only at `destination`.
    pub fn read_only(source: impl Into<PathBuf>, destination: impl Into<PathBuf>) -> Self {
        Self { source: source.into(), destination: destination.into(), writable: false }
    }
}

/// What is to run, and in which surroundings.
#[derive(Debug, Clone)]
pub struct Run {
    /// The program and its arguments; the program is looked up in the run's `PATH`.
    pub command: Vec<String>,
    /// The working directory.
    pub directory: PathBuf,
    /// The whole environment.
    pub variables: BTreeMap<String, String>,
    /// Whether the terminal is passed through.
    pub terminal: bool,
    /// The network.
    pub network: Network,
    /// The user ids.
    pub mapping: Mapping,
    /// What of the host is shown, after everything else.
    pub binds: Vec<Bind>,
    /// The size of /tmp and of /dev/shm in bytes, each.
    pub memory_files: u64,
    /// The host name.
    pub host_name: String,
}

/// Devices that every program may expect (config-linux.md, "Default Devices").
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// Files of /proc that tell of the host, or steer it.
const MASKED: [&str; 7] = [
    "/proc/kcore",
    "/proc/keys",
    "/proc/timer_list",
    "/proc/sched_debug",
    "/proc/sysrq-trigger",
    "/proc/kallsyms",
    "/proc/acpi",
];
const READ_ONLY: [&str; 4] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys"];

/// The policy below; part of every build step's key, since it may change what a step produces.
pub const SANDBOX_POLICY_VERSION: u32 = 1;

/// Describes `run` over the root file system at `root`.
pub fn runtime_spec(run: &Run, root: &Path) -> Result<Spec, OciSpecError> {
    let variables: Vec<String> =
        run.variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let core =
        PosixRlimitBuilder::default().typ(PosixRlimitType::RlimitCore).soft(0u64).hard(0u64).build()?;
    let process = ProcessBuilder::default()
        .terminal(run.terminal)
        .user(UserBuilder::default().uid(0u32).gid(0u32).build()?)
        .args(run.command.clone())
        .env(variables)
        .cwd(&run.directory)
        .no_new_privileges(true)
        .capabilities(no_capabilities())
        .rlimits(vec![core])
        .build()?;
    let mut namespaces = vec![
        LinuxNamespaceType::Mount,
        LinuxNamespaceType::Pid,
        LinuxNamespaceType::Ipc,
        LinuxNamespaceType::Uts,
    ];
    if run.network == Network::None {
        namespaces.push(LinuxNamespaceType::Network);
    }
    if run.mapping != Mapping::Host {
        namespaces.push(LinuxNamespaceType::User);
    }
    let namespaces: Result<Vec<_>, _> =
        namespaces.into_iter().map(|kind| LinuxNamespaceBuilder::default().typ(kind).build()).collect();
    let mut linux = LinuxBuilder::default()
        .namespaces(namespaces?)
        .masked_paths(MASKED.map(str::to_owned).to_vec())
        .readonly_paths(READ_ONLY.map(str::to_owned).to_vec());
    if let Some((uid, gid)) = id_mappings(run.mapping)? {
        linux = linux.uid_mappings(vec![uid]).gid_mappings(vec![gid]);
    }
    SpecBuilder::default()
        .version("1.2.0")
        .process(process)
        .root(RootBuilder::default().path(root).readonly(false).build()?)
        .hostname(run.host_name.clone())
        .mounts(mounts(run)?)
        .linux(linux.build()?)
        .build()
}

fn no_capabilities() -> LinuxCapabilities {
    let mut capabilities = LinuxCapabilities::default();
    capabilities
        .set_bounding(Some([].into()))
        .set_effective(Some([].into()))
        .set_permitted(Some([].into()))
        .set_inheritable(Some([].into()))
        .set_ambient(Some([].into()));
    capabilities
}

fn id_mappings(mapping: Mapping) -> Result<Option<(LinuxIdMapping, LinuxIdMapping)>, OciSpecError> {
    let row = |first: u32, size: u32| {
        LinuxIdMappingBuilder::default().container_id(0u32).host_id(first).size(size).build()
    };
    Ok(match mapping {
        Mapping::Host => None,
        Mapping::Range(first) => {
            Some((row(first, Mapping::RANGE_LENGTH)?, row(first, Mapping::RANGE_LENGTH)?))
        }
        Mapping::Caller { uid, gid } => Some((row(uid, 1)?, row(gid, 1)?)),
    })
}

fn mounts(run: &Run) -> Result<Vec<Mount>, OciSpecError> {
    let mount = |kind: &str, source: &str, destination: &str, options: &[&str]| {
        MountBuilder::default()
            .typ(kind)
            .source(source)
            .destination(destination)
            .options(options.iter().map(|&option| option.to_owned()).collect::<Vec<_>>())
            .build()
    };
    let size = format!("size={}", run.memory_files);
    let plain = ["nosuid", "nodev", "noexec"];
    let mut mounts = vec![
        mount("proc", "proc", "/proc", &plain)?,
        mount("tmpfs", "tmpfs", "/dev", &["nosuid", "noexec", "mode=0755", "size=65536"])?,
        mount(
            "devpts",
            "devpts",
            "/dev/pts",
            &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"],
        )?,
        mount("tmpfs", "shm", "/dev/shm", &["nosuid", "nodev", "mode=1777", &size])?,
        mount("tmpfs", "tmpfs", "/tmp", &["nosuid", "nodev", "mode=1777", &size])?,
    ];
    // A fresh sysfs shows the run's own network devices, not the host's; it needs the network namespace.
    if run.network == Network::None {
        mounts.push(mount("sysfs", "sysfs", "/sys", &["nosuid", "nodev", "noexec", "ro"])?);
    }
    for device in DEVICES {
        let path = format!("/dev/{device}");
        mounts.push(mount("bind", &path, &path, &["bind", "nosuid", "noexec"])?);
    }
    for bind in &run.binds {
        let mut options = vec!["rbind", "nosuid", "nodev"];
        if !bind.writable {
            options.push("ro");
        }
        let (source, destination) = (bind.source.to_string_lossy(), bind.destination.to_string_lossy());
        mounts.push(mount("bind", &source, &destination, &options)?);
    }
    Ok(mounts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(mapping: Mapping, network: Network) -> Run {
        Run {
            command: vec!["true".into()],
            directory: "/workspace/x".into(),
            variables: BTreeMap::from([("PATH".into(), "/bin".into())]),
            terminal: false,
            network,
            mapping,
            binds: vec![Bind::read_only("/host/probe", "/probe")],
            memory_files: 1 << 20,
            host_name: "infradev".into(),
        }
    }

    fn namespaces(spec: &Spec) -> Vec<LinuxNamespaceType> {
        let linux = spec.linux().as_ref().expect("a Linux specification");
        linux.namespaces().iter().flatten().map(|namespace| namespace.typ()).collect()
    }

    #[test]
    fn a_run_has_no_privileges_and_no_network() {
        let spec =
            runtime_spec(&run(Mapping::Range(Mapping::RANGE), Network::None), Path::new("/root")).unwrap();
        let process = spec.process().as_ref().unwrap();
        assert_eq!(process.no_new_privileges(), Some(true));
        let capabilities = process.capabilities().as_ref().unwrap();
        assert!(capabilities.bounding().as_ref().unwrap().is_empty());
        assert!(namespaces(&spec).contains(&LinuxNamespaceType::User));
        assert!(namespaces(&spec).contains(&LinuxNamespaceType::Network));
        let probe = spec.mounts().iter().flatten().last().unwrap();
        assert!(probe.options().as_ref().unwrap().contains(&"ro".to_owned()));
    }

    #[test]
    fn a_host_mapped_run_has_no_user_namespace() {
        let spec = runtime_spec(&run(Mapping::Host, Network::Host), Path::new("/root")).unwrap();
        assert!(!namespaces(&spec).contains(&LinuxNamespaceType::User));
        assert!(!namespaces(&spec).contains(&LinuxNamespaceType::Network));
    }
}
