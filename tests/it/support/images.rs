//! A small image of this machine's own files, and a project over it: environments that need nothing of the host.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::catalog::{PROJECT_TOML, host_python};
use super::machine::work_directory;
use super::place::Place;

/// The task over the image.
pub(crate) const SMALL: &str = "small/one";

const MAKE: &str = include_str!("make_image.py");

/// The directory with `layout`, `archive.tar` and `facts.json`; made once for this program and Python.
pub(crate) fn image() -> &'static Path {
    static IMAGE: OnceLock<PathBuf> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let version = &blake3::hash(MAKE.as_bytes()).to_hex()[..16];
        let user = rustix::process::geteuid().as_raw();
        let place = work_directory().join(format!("infradev-it-image-{version}-{user}"));
        if !place.join("facts.json").exists() {
            let temporary = tempfile::tempdir_in(work_directory()).expect("a directory");
            let status = Command::new("/usr/bin/python3").args(["-c", MAKE]).arg(temporary.path()).status();
            assert!(status.expect("python3 runs").success(), "the image cannot be made");
            let _another_was_faster = fs::rename(temporary.path(), &place);
            fs::set_permissions(&place, std::os::unix::fs::PermissionsExt::from_mode(0o755))
                .expect("an own directory");
        }
        place
    })
}

/// A digest of the image: `manifest`, `list` or `config`.
pub(crate) fn image_digest(which: &str) -> String {
    let text = fs::read_to_string(image().join("facts.json")).expect("the image's facts");
    let facts: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    facts[which].as_str().expect("a digest").to_owned()
}

/// Adds a project over `image` to the catalog, with a lock of its packages and none of its base.
pub(crate) fn write_small(place: &Place, image: &str) {
    let base = format!(
        "base = {{ image = \"{image}\" }}\npython = {{ from = \"base\", version = \"{}\" }}",
        host_python()
    );
    let text = PROJECT_TOML.replace("base = { host = true }\npython = { from = \"base\" }", &base);
    assert!(text.contains(image), "the project is over the image");
    place.write("small/project.toml", text);
    let commit = &place.repository.first;
    place.write(
        "small/tasks/one/task.toml",
        format!(
            "schema = 1\ntitle = \"over an image\"\n\n[source]\ncommit = \"{commit}\"\ndate = \"2023-11-14T22:13:20Z\"\nversion = \"1.0\"\n"
        ),
    );
    let demo = fs::read_to_string(place.path("catalog/demo/locks/pylock.one-cpu.toml")).expect("a lock");
    place.write("small/locks/pylock.one-cpu.toml", demo);
    place.give_to_user();
}
