//! `infradev config show`.

use std::path::Path;

use crate::config::{Config, Setting};
use crate::error::CommandResult;
use crate::session::Session;
use crate::ui::table;

pub(crate) fn show(session: &Session, origin: bool) -> CommandResult<u8> {
    session.ui.data(&session.config, || {
        let mut rows = rows(&session.config);
        if !origin {
            rows.iter_mut().for_each(|row| row.truncate(2));
            return table(&["SETTING", "VALUE"], &[false; 2], &rows);
        }
        table(&["SETTING", "VALUE", "ORIGIN"], &[false; 3], &rows)
    });
    Ok(0)
}

/// Lists every setting, by its key in files; one that is not set shows as `-`.
fn rows(config: &Config) -> Vec<Vec<String>> {
    let path = |path: &Path| path.display().to_string();
    let mut rows = vec![
        all("store", [path(&config.store.value)], &config.store.origin),
        list("store-ro", &config.store_ro, |found| path(found)),
        list("catalogs", &config.catalogs, |found| path(found)),
        list("trust", &config.trust, String::clone),
        one("index", config.index.as_ref(), String::clone),
        all("jobs", [config.jobs.value.to_string()], &config.jobs.origin),
        one("back-end", config.back_end.as_ref(), |found| found.word().to_owned()),
        one("ca-file", config.ca_file.as_ref(), |found| path(found)),
        list("plain-http", &config.plain_http, String::clone),
        all("patience", [config.patience.value.to_string()], &config.patience.origin),
        all("offline", [config.offline.value.to_string()], &config.offline.origin),
    ];
    for (url, place) in &config.mirrors {
        rows.push(all(&format!("mirror of {url}"), [place.value.clone()], &place.origin));
    }
    rows
}

fn one<T>(name: &str, setting: Option<&Setting<T>>, word: impl Fn(&T) -> String) -> Vec<String> {
    all(name, setting.map(|set| word(&set.value)), setting.map_or("default", |set| &set.origin))
}

fn list<T>(name: &str, setting: &Setting<Vec<T>>, word: impl Fn(&T) -> String) -> Vec<String> {
    all(name, setting.value.iter().map(word), &setting.origin)
}

fn all(name: &str, words: impl IntoIterator<Item = String>, origin: &str) -> Vec<String> {
    let words: Vec<String> = words.into_iter().collect();
    let shown = if words.is_empty() { "-".to_owned() } else { words.join(" ") };
    vec![name.to_owned(), shown, origin.to_owned()]
}
