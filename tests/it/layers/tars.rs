//! Hostile layer archives: each is refused with a message that names the entry, or read as documented.

mod archive;
mod cases;

use std::collections::BTreeSet;
use std::path::Path;

use infradev_layers::{Decompressed, LayerTarOptions, SpecialFiles, TarError, Tree, layer_tar_tree};

use super::ground::Ground;
use archive::{Archive, Head};

/// What becomes of the archives; the cases are made by `cases::archive`.
fn table() -> Vec<toml::Table> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("layers/testdata/hostile-archives.toml");
    let text = std::fs::read_to_string(path).expect("a table of the cases");
    let table: toml::Table = text.parse().expect("TOML");
    let cases = table["case"].as_array().expect("cases");
    cases.iter().map(|case| case.as_table().expect("a case").clone()).collect()
}

/// Reads `bytes` as a layer; returns what was read or refused, and how many bytes of content were written.
fn read(
    ground: &Ground,
    bytes: &[u8],
    special_files: SpecialFiles,
) -> (Result<(Tree, Vec<String>), TarError>, u64) {
    ground.dry(|ingest| {
        let options = LayerTarOptions { special_files, ..LayerTarOptions::default() };
        let read = Decompressed::new(bytes)
            .map_err(TarError::Read)
            .and_then(|mut reader| layer_tar_tree(&mut reader, options, ingest));
        let read = read.map(|layer| (layer.tree, layer.notes.iter().map(ToString::to_string).collect()));
        (read, ingest.written())
    })
}

fn message(error: &TarError) -> String {
    use std::error::Error;
    let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{error}{cause}")
}

fn strings(case: &toml::Table, key: &str) -> Option<Vec<String>> {
    let array = case.get(key)?.as_array().expect("an array");
    Some(array.iter().map(|value| value.as_str().expect("a string").to_owned()).collect())
}

fn listed(tree: &Tree) -> Vec<String> {
    let entries = tree.entries().iter().filter(|entry| !entry.path.is_root());
    entries
        .map(|entry| {
            let bytes = entry.path.as_bytes();
            let path =
                std::str::from_utf8(bytes).map_or_else(|_| bytes.escape_ascii().to_string(), str::to_owned);
            format!("{} {path}", entry.kind.word())
        })
        .collect()
}

#[test]
fn hostile_archives_are_refused_or_read_as_documented() {
    let ground = Ground::new();
    let mut seen = BTreeSet::new();
    for case in table() {
        let id = case["id"].as_str().expect("a name");
        assert!(seen.insert(id.to_owned()), "{id} is there twice");
        let bytes = cases::archive(id).unwrap_or_else(|| panic!("{id} has no archive"));
        let (read, written) = read(&ground, &bytes, SpecialFiles::Refuse);
        assert!(written < 300 << 20, "{id}: {written} bytes were written");
        match (case.get("says"), read) {
            (Some(says), Err(error)) => {
                let (says, message) = (says.as_str().expect("a string"), message(&error));
                assert!(message.contains(says), "{id}: `{message}` does not say `{says}`");
            }
            (None, Ok((tree, notes))) => {
                assert_eq!(listed(&tree), strings(&case, "tree").expect("a tree"), "{id}");
                assert_eq!(notes, strings(&case, "notes").unwrap_or_default(), "{id}");
            }
            (Some(_), Ok((tree, _))) => panic!("{id} was read: {:?}", listed(&tree)),
            (None, Err(error)) => panic!("{id} was refused: {}", message(&error)),
        }
    }
    assert!(ground.store.layers().expect("a store").is_empty());
}

#[test]
fn special_files_are_dropped_where_that_is_asked_for() {
    let ground = Ground::new();
    for (id, word) in [("T15-device", "device"), ("T15-fifo", "FIFO")] {
        let bytes = cases::archive(id).expect("a case");
        let (tree, notes) = read(&ground, &bytes, SpecialFiles::Drop).0.expect("it is read");
        assert_eq!(listed(&tree), [""; 0]);
        assert!(notes[0].ends_with(&format!("is a {word}, which no layer can hold")), "{notes:?}");
    }
}

/// A file of 9 GiB is announced in each of the ways that writers use; the announcement is believed, and what
/// comes after it is found to be too short.
#[test]
fn sizes_beyond_the_octal_field_are_accepted() {
    let ground = Ground::new();
    let size = 9u64 << 30;
    let text = size.to_string();
    let saturated = Head { size: b"77777777777\0".to_vec(), ..Head::new(b"f", b'0', 0) };
    let binary = [&[0x80, 0, 0, 0][..], &size.to_be_bytes()].concat();
    for mut archive in [
        Archive::default().pax(&[("size", text.as_bytes())]).head(&Head::new(b"f", b'0', 0)).clone(),
        Archive::default().pax(&[("size", text.as_bytes())]).head(&saturated).clone(),
        Archive::default().head(&Head { size: binary, ..Head::new(b"f", b'0', 0) }).clone(),
    ] {
        let (read, _) = read(&ground, &archive.content(b"short").end(), SpecialFiles::Refuse);
        let message = message(&read.expect_err("9 GiB are not there"));
        assert!(message.contains("it ends in the middle of a file"), "{message}");
    }
}
