//! The files that make a source tree importable where it lies, and known as an installed distribution.

use crate::recipe::GeneratedFile;
use crate::resolve::Recipe;
use crate::target::PythonVersion;

/// Returns a `.pth` that names the source tree, and a minimal dist-info (the recording of installed
/// projects specification of packaging.python.org).
pub(crate) fn installed_files(recipe: &Recipe, python: PythonVersion) -> Vec<GeneratedFile> {
    let site = python.site_packages();
    let name = recipe.distribution.file_form();
    // In file names a version is normalised; one that is not was refused by the parser.
    let version = recipe.source.version.parse::<pep440_rs::Version>();
    let version = version.map_or_else(|_| recipe.source.version.clone(), |version| version.to_string());
    let folder = format!("{name}-{version}.dist-info");
    let pth = format!("{name}.pth");
    let metadata = format!("Metadata-Version: 2.1\nName: {}\nVersion: {version}\n", recipe.distribution);
    let own = recipe.files.iter().filter_map(|file| file.path.strip_prefix(&format!("{site}/")));
    let own = own.filter(|path| path.starts_with(&format!("{folder}/"))).map(str::to_owned);
    let mut recorded: Vec<String> =
        ["INSTALLER", "METADATA", "RECORD"].map(|file| format!("{folder}/{file}")).into();
    recorded.push(pth.clone());
    recorded.extend(own);
    recorded.sort();
    recorded.dedup();
    // Hashes and sizes may be left out; nothing uninstalls from an environment.
    let record: String = recorded.iter().map(|path| format!("{path},,\n")).collect();
    let file = |path: String, content: String| GeneratedFile {
        path: format!("{site}/{path}"),
        mode: 0o644,
        content: content.into_bytes(),
    };
    vec![
        file(format!("{folder}/INSTALLER"), "infradev\n".to_owned()),
        file(format!("{folder}/METADATA"), metadata),
        file(format!("{folder}/RECORD"), record),
        file(pth, format!("{}\n", recipe.workspace)),
    ]
}
