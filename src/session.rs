//! What every command works with: configuration, terminal, store, catalog, network; each opened on first use.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use infradev_recipes::{Catalog, CatalogError, Probe, Recipe, TaskName, select, variants_of};
use infradev_store::{Access, FileSystem, Store};

use crate::config::Config;
use crate::env::back_end::{BackEnd, Uppers};
use crate::env::trial::choose;
use crate::error::{CommandError, CommandResult, Kind, chain};
use crate::net::{Client, Http, HttpSettings, NetError, PackageIndex, Registry};
use crate::share::dir::DirRemote;
use crate::share::grading::bundled_catalogs;
use crate::share::{Remote, RemoteError};
use crate::ui::Ui;

/// Where distributions keep all authorities in one file: Debian, Fedora, openSUSE, Alpine.
const SYSTEM_AUTHORITIES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The surroundings of a command.
#[derive(Debug)]
pub struct Session {
    /// The configuration.
    pub config: Config,
    /// The terminal.
    pub ui: Ui,
    store: OnceLock<Store>,
    /// The store of commands that only read, unless they opened it for writing first.
    reading: OnceLock<Store>,
    catalog: OnceLock<Catalog>,
    http: OnceLock<Arc<Http>>,
    client: OnceLock<Client>,
    index: PackageIndex,
}

/// Where a store has the locks that belong to the machine.
const MACHINE_CATALOG: &str = "caches/catalog";

impl Session {
    /// Makes a session; opens nothing yet.
    pub fn new(config: Config, ui: Ui) -> Self {
        let index = PackageIndex::new(config.index.as_ref().map(|index| index.value.clone()));
        let (store, reading) = (OnceLock::new(), OnceLock::new());
        let (catalog, http, client) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Self { config, ui, store, reading, catalog, http, client, index }
    }

    /// Opens the store for writing, making it if it is absent, and removes what dead commands left in it.
    pub fn store(&self) -> CommandResult<&Store> {
        if let Some(store) = self.store.get() {
            return Ok(store);
        }
        let store = Store::open(&self.config.store.value, Access::Write)?.over(self.shared_stores()?);
        crate::env::state::sweep(&store)?;
        // There from the start, so that a catalog which is open finds locks that are made later.
        let machine = self.machine_catalog();
        std::fs::create_dir_all(&machine)
            .map_err(|error| infradev_store::Error::io("create", &machine, error))?;
        Ok(self.store.get_or_init(|| store))
    }

    /// Returns how environments are put together here: as configured, else by the cheapest way that works.
    pub fn back_end(&self) -> CommandResult<BackEnd> {
        let wanted = self.config.back_end.as_ref();
        let choice = choose(self.store()?, wanted.map(|wanted| wanted.value), Uppers::Disk, false)?;
        match (wanted, choice.refused.first()) {
            (Some(wanted), Some((back_end, reason))) => {
                let text = format!("the back end `{}` does not work here: {reason}", back_end.word());
                Err(CommandError::new(Kind::Infrastructure, text).hint(format!(
                    "it comes from {}; `infradev doctor` lists those that work",
                    wanted.origin
                )))
            }
            _ => Ok(choice.back_end),
        }
    }

    /// The same for an environment that is discarded when its command ends: where no upper can lie beside the store,
    /// it may lie in memory.
    pub fn back_end_of_discarded(&self) -> CommandResult<(BackEnd, Uppers)> {
        let store = self.store()?;
        if store.file_system() == FileSystem::Overlay {
            let wanted = self.config.back_end.as_ref().map(|wanted| wanted.value);
            let choice = choose(store, wanted, Uppers::Memory, false)?;
            if choice.works() && choice.back_end != BackEnd::Copy {
                return Ok((choice.back_end, Uppers::Memory));
            }
        }
        Ok((self.back_end()?, Uppers::Disk))
    }

    /// Returns the file of authorities that tools of the host are told to trust: what this program trusts. `None` if
    /// those of the system are all.
    pub fn authorities_for_tools(&self) -> CommandResult<Option<PathBuf>> {
        let HttpSettings { ca_file, cert_file, .. } = self.config.http();
        let Some((own, _)) = ca_file else { return Ok(cert_file) };
        let others = cert_file
            .or_else(|| SYSTEM_AUTHORITIES.map(PathBuf::from).into_iter().find(|path| path.is_file()));
        let mut bundle = vec![];
        for path in others.into_iter().chain([own]) {
            let read =
                std::fs::read(&path).map_err(|error| infradev_store::Error::io("read", &path, error))?;
            bundle.extend(read);
            bundle.push(b'\n');
        }
        let place = self.store()?.layout().cache("authorities.pem");
        if std::fs::read(&place).ok().as_ref() != Some(&bundle) {
            let temporary = place.with_extension(crate::hex::unique());
            let written =
                std::fs::write(&temporary, &bundle).and_then(|()| std::fs::rename(&temporary, &place));
            written.map_err(|error| infradev_store::Error::io("write", &place, error))?;
        }
        Ok(Some(place))
    }

    /// Opens the store for a command that only reads.
    pub fn store_for_reading(&self) -> CommandResult<&Store> {
        if let Some(store) = self.store.get() {
            return Ok(store);
        }
        let store = self.open_for_reading()?;
        Ok(self.reading.get_or_init(|| store))
    }

    /// Opens the store over the shared ones; a shared one alone where there is no other yet.
    fn open_for_reading(&self) -> CommandResult<Store> {
        let mut shared = self.shared_stores()?;
        match Store::open(&self.config.store.value, Access::Read) {
            Err(infradev_store::Error::Absent { .. }) if !shared.is_empty() => {
                let first = shared.remove(0);
                Ok(first.over(shared))
            }
            other => Ok(other?.over(shared)),
        }
    }

    /// Opens the shared stores.
    fn shared_stores(&self) -> CommandResult<Vec<Store>> {
        let setting = &self.config.store_ro;
        let open = |path: &PathBuf| {
            if same_directory(path, &self.config.store.value) {
                let text = format!("{} is the store itself, not a shared one", path.display());
                return Err(CommandError::usage(text).hint(format!("it comes from {}", setting.origin)));
            }
            Store::open(path, Access::Read).map_err(|error| {
                let text = format!("the shared store cannot be used: {}", chain(&error));
                CommandError::usage(text).hint(format!("it comes from {}", setting.origin))
            })
        };
        setting.value.iter().map(open).collect()
    }

    /// Opens the store for a command that has something to say without one too; any other failure is an error.
    pub fn store_if_any(&self) -> CommandResult<Option<&Store>> {
        let is_absent = || {
            let opened = Store::open(&self.config.store.value, Access::Read);
            matches!(opened, Err(infradev_store::Error::Absent { .. }))
        };
        if self.config.store_ro.value.is_empty() && is_absent() {
            return Ok(None);
        }
        self.store_for_reading().map(Some)
    }

    /// Where locks that belong to this machine are kept: a catalog over the configured ones.
    pub fn machine_catalog(&self) -> PathBuf {
        self.config.store.value.join(MACHINE_CATALOG)
    }

    /// The same of the shared stores, below one's own: what is built there was locked on a machine like this.
    fn machine_catalogs(&self) -> Vec<PathBuf> {
        let shared = self.config.store_ro.value.iter().rev().map(|store| store.join(MACHINE_CATALOG));
        shared.chain([self.machine_catalog()]).collect()
    }

    /// Whether a file of a catalog was made for one machine, and is not a maintainer's.
    pub fn is_of_machine(&self, path: &Path) -> bool {
        self.machine_catalogs().iter().any(|machine| path.starts_with(machine))
    }

    /// Opens the catalogs.
    pub fn catalog(&self) -> CommandResult<&Catalog> {
        if let Some(catalog) = self.catalog.get() {
            return Ok(catalog);
        }
        let catalog = self.fresh_catalog()?;
        Ok(self.catalog.get_or_init(|| catalog))
    }

    /// Opens the catalogs anew, to see what was written since.
    pub fn fresh_catalog(&self) -> CommandResult<Catalog> {
        let mut roots = self.catalog_roots();
        if roots.is_empty() {
            return Err(CommandError::usage("no catalog of recipes is configured")
                .hint("name one with --catalog, or run infradev in a checkout that has recipes/catalog"));
        }
        if let Some(absent) = roots.iter().find(|root| !root.is_dir()) {
            return Err(CommandError::usage(format!("there is no catalog at {}", absent.display()))
                .hint("a catalog is a directory of recipes, named by --catalog, INFRADEV_CATALOG or the configuration"));
        }
        roots.extend(self.machine_catalogs().into_iter().filter(|machine| machine.is_dir()));
        Ok(Catalog::open(&roots)?)
    }

    /// The catalogs of grading bundles below the configured ones: whoever has a catalog works on it.
    fn catalog_roots(&self) -> Vec<PathBuf> {
        let mut roots = bundled_catalogs(&self.config.store.value);
        roots.extend(self.config.catalogs.value.iter().cloned());
        roots
    }

    /// Reads the probes of a task.
    pub fn fresh_grading(&self, task: &TaskName) -> Result<Vec<Probe>, CatalogError> {
        let catalog = Catalog::open(&self.catalog_roots())?;
        Ok(catalog.grading(task)?.probes)
    }

    /// Opens a place for images: `dir:PATH`, or a repository of a registry; returns it and the tag or digest given.
    pub fn remote(&self, text: &str) -> CommandResult<(Box<dyn Remote>, Option<String>)> {
        // By the rules for images it would be a repository of the registry that everybody knows.
        if !text.starts_with("dir:") && !text.contains('/') {
            return Err(CommandError::usage(format!("`{text}` names no repository"))
                .hint("expected HOST[:PORT]/REPOSITORY, or dir:PATH of an image layout"));
        }
        self.image_place(text)
    }

    /// The same by the rules for images, where `debian` alone is a repository of the usual registry.
    pub fn image_place(&self, text: &str) -> CommandResult<(Box<dyn Remote>, Option<String>)> {
        match text.strip_prefix("dir:") {
            Some("") => Err(CommandError::usage(format!("`{text}` is no place for images"))
                .hint("expected dir:PATH of an image layout")),
            Some(path) => Ok((Box::new(DirRemote::new(path)), None)),
            None => {
                let http = Arc::clone(self.http().map_err(RemoteError::from)?);
                let opened = Registry::open(http, text, self.config.auth_files.clone());
                let (registry, reference) = opened.map_err(RemoteError::from)?;
                Ok((Box::new(registry), reference))
            }
        }
    }

    /// How this machine speaks to others.
    fn http(&self) -> Result<&Arc<Http>, NetError> {
        if let Some(http) = self.http.get() {
            return Ok(http);
        }
        let http = Arc::new(Http::new(self.config.http())?);
        Ok(self.http.get_or_init(|| http))
    }

    /// The client for downloads.
    pub fn client(&self) -> Result<&Client, NetError> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        let client = Client::new(Arc::clone(self.http()?));
        Ok(self.client.get_or_init(|| client))
    }

    /// The package index.
    pub fn index(&self) -> &PackageIndex {
        &self.index
    }

    /// Returns the tasks that `selectors` name, in catalog order, each once.
    pub fn tasks(&self, selectors: &[String]) -> CommandResult<Vec<TaskName>> {
        let catalog = self.catalog()?;
        let mut tasks = vec![];
        for selector in selectors {
            tasks.extend(select(catalog.tasks(), selector)?);
        }
        tasks.sort();
        tasks.dedup();
        Ok(tasks)
    }

    /// Returns the recipes of `tasks` in the variant `variant`, or in each that they have.
    pub fn recipes(&self, tasks: &[TaskName], variant: Option<&str>) -> CommandResult<Vec<Recipe>> {
        let catalog = self.catalog()?;
        let mut recipes = vec![];
        for name in tasks {
            match variant {
                Some(variant) => recipes.push(catalog.recipe(name, variant)?),
                None => {
                    let project = catalog.project(&name.project)?;
                    let task = catalog.task(name, &project)?;
                    for variant in variants_of(&project, &task) {
                        recipes.push(catalog.recipe(name, &variant)?);
                    }
                }
            }
        }
        Ok(recipes)
    }
}

fn same_directory(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    real(one) == real(other)
}
