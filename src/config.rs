//! Configuration: command line over environment over files over defaults. The only reader of the environment.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::env::back_end::BackEnd;
use crate::error::{CommandError, CommandResult};
use crate::net::{AuthFile, HttpSettings, ProxySettings};

/// What a configuration file may say.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
struct FileConfig {
    store: Option<PathBuf>,
    store_ro: Option<Vec<PathBuf>>,
    catalogs: Option<Vec<PathBuf>>,
    trust: Option<Vec<String>>,
    index: Option<String>,
    jobs: Option<usize>,
    back_end: Option<BackEnd>,
    ca_file: Option<PathBuf>,
    plain_http: Option<Vec<String>>,
    patience: Option<f64>,
    #[serde(default)]
    mirrors: BTreeMap<String, String>,
}

/// A value and where it came from.
#[derive(Debug, Clone, Serialize)]
pub struct Setting<T> {
    /// The value.
    pub value: T,
    /// For `config show --origin`.
    pub origin: String,
}

impl<T> Setting<T> {
    fn new(value: T, origin: impl Into<String>) -> Self {
        Self { value, origin: origin.into() }
    }
}

/// Everything that a command may need to know about its surroundings.
#[derive(Debug, Clone, Serialize)]
pub struct Config {
    /// The store's directory.
    pub store: Setting<PathBuf>,
    /// Shared stores that are only read, in the order in which they are searched.
    pub store_ro: Setting<Vec<PathBuf>>,
    /// The catalogs, later ones over earlier ones.
    pub catalogs: Setting<Vec<PathBuf>>,
    /// Repositories whose action records are taken: `host/repository`, and everything below it.
    pub trust: Setting<Vec<String>>,
    /// The package index, if one is configured.
    pub index: Option<Setting<String>>,
    /// Source URLs, and where to fetch from instead.
    pub mirrors: BTreeMap<String, Setting<String>>,
    /// How many steps run at once.
    pub jobs: Setting<usize>,
    /// How environments are put together, if not by the cheapest way that works.
    pub back_end: Option<Setting<BackEnd>>,
    /// Certificates of authorities to trust besides the usual ones.
    pub ca_file: Option<Setting<PathBuf>>,
    /// Registries (`HOST:PORT`) that are spoken to without TLS.
    pub plain_http: Setting<Vec<String>>,
    /// What all waits of the network are multiplied by.
    pub patience: Setting<f64>,
    /// Whether the network may be used.
    pub offline: Setting<bool>,
    /// NO_COLOR is set.
    #[serde(skip)]
    pub no_color: bool,
    /// CI is set.
    #[serde(skip)]
    pub ci: bool,
    /// The caller's search path, for tools of the host.
    #[serde(skip)]
    pub path: String,
    /// Where a job's summary is collected (`GITHUB_STEP_SUMMARY`).
    #[serde(skip)]
    pub step_summary: Option<PathBuf>,
    /// TERM, for interactive commands.
    #[serde(skip)]
    pub term: Option<String>,
    /// Where credentials for registries are looked for, in this order.
    #[serde(skip)]
    pub auth_files: Vec<AuthFile>,
    /// Things that a user should hear about the configuration.
    #[serde(skip)]
    pub warnings: Vec<String>,
}

/// What of the command line decides about the configuration.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// `--store`
    pub store: Option<PathBuf>,
    /// `--store-ro`
    pub store_ro: Vec<PathBuf>,
    /// `--catalog`
    pub catalogs: Vec<PathBuf>,
    /// `--back-end`
    pub back_end: Option<BackEnd>,
    /// `--offline`
    pub offline: bool,
    /// `--mirror URL=PLACE`
    pub mirrors: Vec<(String, String)>,
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl Config {
    /// Reads the configuration.
    pub fn load(overrides: Overrides) -> CommandResult<Self> {
        let root = rustix::process::geteuid().is_root();
        let home = variable("HOME").map(PathBuf::from);
        let data = variable("XDG_DATA_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(home.as_ref()?.join(".local/share")));
        let auth_files = auth_files(home.as_deref());
        let user_config =
            variable("XDG_CONFIG_HOME").map(PathBuf::from).or_else(|| Some(home?.join(".config")));
        let files = [
            Some(PathBuf::from("/etc/infradev/config.toml")),
            user_config.map(|directory| directory.join("infradev/config.toml")),
            Some(PathBuf::from("infradev.toml")),
        ];
        let default_store = match (root, data) {
            (false, Some(data)) => data.join("infradev"),
            _ => PathBuf::from("/var/lib/infradev"),
        };
        let mut config = Self {
            store: Setting::new(default_store, "default"),
            store_ro: Setting::new(vec![], "default"),
            catalogs: Setting::new(shipped_catalog().into_iter().collect(), "default"),
            trust: Setting::new(vec![], "default"),
            index: None,
            mirrors: BTreeMap::new(),
            jobs: Setting::new(std::thread::available_parallelism().map_or(1, usize::from), "default"),
            back_end: None,
            ca_file: None,
            plain_http: Setting::new(vec![], "default"),
            patience: Setting::new(1.0, "default"),
            offline: Setting::new(false, "default"),
            no_color: variable("NO_COLOR").is_some(),
            ci: variable("CI").is_some_and(|value| value != "false" && value != "0"),
            path: variable("PATH")
                .unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin".to_owned()),
            step_summary: variable("GITHUB_STEP_SUMMARY").map(PathBuf::from),
            term: variable("TERM"),
            auth_files,
            warnings: vec![],
        };
        for file in files.into_iter().flatten() {
            config.apply_file(&file)?;
        }
        config.apply_environment()?;
        config.apply_overrides(overrides);
        Ok(config)
    }

    fn apply_file(&mut self, path: &Path) -> CommandResult {
        use std::io::ErrorKind::{NotADirectory, NotFound};
        let text = match std::fs::read_to_string(path) {
            Err(error) if matches!(error.kind(), NotFound | NotADirectory) => return Ok(()),
            read => read.map_err(|error| CommandError::file("read", path, &error))?,
        };
        let wrong = |error: &dyn std::fmt::Display| {
            CommandError::usage(format!("{}: {}", path.display(), error.to_string().trim_end()))
        };
        let table: toml::Table = toml::from_str(&text).map_err(|error| wrong(&error))?;
        const KNOWN: [&str; 11] = [
            "store",
            "store-ro",
            "catalogs",
            "trust",
            "index",
            "jobs",
            "back-end",
            "ca-file",
            "plain-http",
            "patience",
            "mirrors",
        ];
        for key in table.keys().filter(|key| !KNOWN.contains(&key.as_str())) {
            self.warnings.push(format!(
                "{}: unknown key `{key}`; known are {}",
                path.display(),
                KNOWN.join(", ")
            ));
        }
        let file: FileConfig = table.try_into().map_err(|error| wrong(&error))?;
        let origin = path.display().to_string();
        let beside = |relative: PathBuf| path.parent().unwrap_or(Path::new("")).join(relative);
        if let Some(store) = file.store {
            self.store = Setting::new(beside(store), &origin);
        }
        if let Some(shared) = file.store_ro {
            self.store_ro = Setting::new(shared.into_iter().map(beside).collect(), &origin);
        }
        if let Some(catalogs) = file.catalogs {
            self.catalogs = Setting::new(catalogs.into_iter().map(beside).collect(), &origin);
        }
        if let Some(trust) = file.trust {
            self.trust = Setting::new(trust, &origin);
        }
        if let Some(index) = file.index {
            self.index = Some(Setting::new(index, &origin));
        }
        if let Some(jobs) = file.jobs {
            self.jobs = Setting::new(jobs.max(1), &origin);
        }
        if let Some(back_end) = file.back_end {
            self.back_end = Some(Setting::new(back_end, &origin));
        }
        if let Some(ca_file) = file.ca_file {
            self.ca_file = Some(Setting::new(beside(ca_file), &origin));
        }
        if let Some(plain_http) = file.plain_http {
            self.plain_http = Setting::new(plain_http, &origin);
        }
        if let Some(patience) = file.patience {
            self.patience = Setting::new(checked_patience(patience).map_err(|error| wrong(&error))?, &origin);
        }
        self.mirrors.extend(file.mirrors.into_iter().map(|(url, place)| (url, Setting::new(place, &origin))));
        Ok(())
    }

    fn apply_environment(&mut self) -> CommandResult {
        if let Some(store) = variable("INFRADEV_STORE") {
            self.store = Setting::new(store.into(), "INFRADEV_STORE");
        }
        if let Some(shared) = variable("INFRADEV_STORE_RO") {
            self.store_ro = Setting::new(std::env::split_paths(&shared).collect(), "INFRADEV_STORE_RO");
        }
        if let Some(catalogs) = variable("INFRADEV_CATALOG") {
            self.catalogs = Setting::new(std::env::split_paths(&catalogs).collect(), "INFRADEV_CATALOG");
        }
        for name in ["PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX", "INFRADEV_INDEX"] {
            if let Some(index) = variable(name) {
                self.index = Some(Setting::new(index, name));
            }
        }
        if let Some(jobs) = variable("INFRADEV_JOBS") {
            let jobs: usize = jobs.parse().map_err(|_| {
                CommandError::usage(format!(
                    "INFRADEV_JOBS is `{jobs}`: expected a number of steps to run at once"
                ))
            })?;
            self.jobs = Setting::new(jobs.max(1), "INFRADEV_JOBS");
        }
        if let Some(word) = variable("INFRADEV_BACK_END") {
            let known = BackEnd::ALL.into_iter().find(|back_end| back_end.word() == word);
            let back_end = known.ok_or_else(|| {
                let words = BackEnd::ALL.map(BackEnd::word).join(", ");
                CommandError::usage(format!("INFRADEV_BACK_END is `{word}`: expected one of {words}"))
            })?;
            self.back_end = Some(Setting::new(back_end, "INFRADEV_BACK_END"));
        }
        if let Some(ca_file) = variable("INFRADEV_CA_FILE") {
            self.ca_file = Some(Setting::new(ca_file.into(), "INFRADEV_CA_FILE"));
        }
        if let Some(hosts) = variable("INFRADEV_PLAIN_HTTP") {
            let hosts = hosts.split_whitespace().map(str::to_owned).collect();
            self.plain_http = Setting::new(hosts, "INFRADEV_PLAIN_HTTP");
        }
        if let Some(patience) = variable("INFRADEV_PATIENCE") {
            let read = patience.parse().map_err(|_| "it is no number".to_owned());
            let patience = read.and_then(checked_patience);
            let patience =
                patience.map_err(|error| CommandError::usage(format!("INFRADEV_PATIENCE: {error}")))?;
            self.patience = Setting::new(patience, "INFRADEV_PATIENCE");
        }
        if let Some(offline) = variable("INFRADEV_OFFLINE") {
            self.offline = Setting::new(offline != "0", "INFRADEV_OFFLINE");
        }
        if let Some(mirrors) = variable("INFRADEV_MIRRORS") {
            // The form of the option: URL=PLACE, separated by white space.
            for (url, place) in mirrors.split_whitespace().filter_map(|mirror| mirror.split_once('=')) {
                self.mirrors.insert(url.to_owned(), Setting::new(place.to_owned(), "INFRADEV_MIRRORS"));
            }
        }
        Ok(())
    }

    fn apply_overrides(&mut self, overrides: Overrides) {
        if let Some(store) = overrides.store {
            self.store = Setting::new(store, "--store");
        }
        if !overrides.store_ro.is_empty() {
            self.store_ro = Setting::new(overrides.store_ro, "--store-ro");
        }
        if !overrides.catalogs.is_empty() {
            self.catalogs = Setting::new(overrides.catalogs, "--catalog");
        }
        if let Some(back_end) = overrides.back_end {
            self.back_end = Some(Setting::new(back_end, "--back-end"));
        }
        if overrides.offline {
            self.offline = Setting::new(true, "--offline");
        }
        for (url, place) in overrides.mirrors {
            self.mirrors.insert(url, Setting::new(place, "--mirror"));
        }
    }

    /// Whether action records of the place `name` are taken.
    pub fn trusts(&self, name: &str) -> bool {
        let is_below = |trusted: &String| {
            name.strip_prefix(trusted.trim_end_matches('/'))
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.trust.value.iter().any(is_below)
    }

    /// Returns how this machine speaks to others.
    pub fn http(&self) -> HttpSettings {
        // Lower case first, as curl has it.
        let either = |name: &str| variable(&name.to_lowercase()).or_else(|| variable(name));
        HttpSettings {
            offline: self.offline.value,
            ca_file: self.ca_file.as_ref().map(|file| (file.value.clone(), file.origin.clone())),
            cert_file: variable("SSL_CERT_FILE").map(PathBuf::from),
            cert_dir: variable("SSL_CERT_DIR").map(PathBuf::from),
            proxy: ProxySettings {
                http: either("HTTP_PROXY"),
                https: either("HTTPS_PROXY"),
                all: either("ALL_PROXY"),
                none: either("NO_PROXY"),
            },
            plain_http: self.plain_http.value.clone(),
            patience: self.patience.value,
        }
    }

    /// Returns the caller's values of variables that a build step declares to be harmless.
    pub fn passed_through(&self, names: &[String]) -> BTreeMap<String, String> {
        names.iter().filter_map(|name| Some((name.clone(), variable(name)?))).collect()
    }

    /// Clears the environment of a tool of the host, but for where it finds programs and proxies.
    pub fn clear_for_tool(command: &mut std::process::Command) {
        const KEPT: [&str; 9] = [
            "PATH",
            "http_proxy",
            "https_proxy",
            "no_proxy",
            "HTTP_PROXY",
            "HTTPS_PROXY",
            "NO_PROXY",
            "SSL_CERT_FILE",
            "SSL_CERT_DIR",
        ];
        command.env_clear().envs(KEPT.into_iter().filter_map(|name| Some((name, variable(name)?))));
    }

    /// Returns where `url` is to be fetched from.
    pub fn mirror<'a>(&'a self, url: &'a str) -> &'a str {
        let plain = |url: &str| url.trim_end_matches('/').trim_end_matches(".git").to_owned();
        let found = self.mirrors.iter().find(|(from, _)| plain(from) == plain(url));
        found.map_or(url, |(_, place)| &place.value)
    }
}

/// Where podman, then docker keep credentials.
fn auth_files(home: Option<&Path>) -> Vec<AuthFile> {
    if let Some(path) = variable("REGISTRY_AUTH_FILE") {
        return vec![AuthFile { path: path.into(), named: true }];
    }
    let podman = variable("XDG_RUNTIME_DIR").map(|runtime| Path::new(&runtime).join("containers/auth.json"));
    let docker = variable("DOCKER_CONFIG").map(PathBuf::from).or_else(|| Some(home?.join(".docker")));
    let docker = docker.map(|directory| directory.join("config.json"));
    podman.into_iter().chain(docker).map(|path| AuthFile { path, named: false }).collect()
}

fn checked_patience(patience: f64) -> Result<f64, String> {
    match (0.001..=1000.0).contains(&patience) {
        true => Ok(patience),
        false => Err(format!("patience is {patience}: expected a factor from 0.001 to 1000")),
    }
}

/// Finds the catalog that belongs to this program: in the working directory, or beside the program's sources.
fn shipped_catalog() -> Option<PathBuf> {
    let program = std::env::current_exe().ok();
    let places = program.iter().flat_map(|program| program.ancestors().skip(1).take(4));
    let places = [Path::new("")].into_iter().chain(places);
    places.map(|place| place.join("recipes/catalog")).find(|catalog| catalog.is_dir())
}
