//! `infradev config show`.

use crate::error::CommandResult;
use crate::session::Session;
use crate::ui::table;

pub(crate) fn show(session: &Session, origin: bool) -> CommandResult<u8> {
    let config = &session.config;
    session.ui.data(config, || {
        let catalogs =
            config.catalogs.value.iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
        let mut rows = vec![
            vec!["store".to_owned(), config.store.value.display().to_string(), config.store.origin.clone()],
            vec!["catalogs".to_owned(), catalogs.join(" "), config.catalogs.origin.clone()],
            vec!["jobs".to_owned(), config.jobs.value.to_string(), config.jobs.origin.clone()],
        ];
        if !config.store_ro.value.is_empty() {
            let shared: Vec<_> =
                config.store_ro.value.iter().map(|path| path.display().to_string()).collect();
            rows.push(vec!["store-ro".to_owned(), shared.join(" "), config.store_ro.origin.clone()]);
        }
        if let Some(back_end) = &config.back_end {
            rows.push(vec!["back-end".to_owned(), back_end.value.word().to_owned(), back_end.origin.clone()]);
        }
        if let Some(ca_file) = &config.ca_file {
            rows.push(vec![
                "ca-file".to_owned(),
                ca_file.value.display().to_string(),
                ca_file.origin.clone(),
            ]);
        }
        if !config.plain_http.value.is_empty() {
            let hosts = config.plain_http.value.join(" ");
            rows.push(vec!["plain-http".to_owned(), hosts, config.plain_http.origin.clone()]);
        }
        if config.patience.origin != "default" {
            let patience = config.patience.value.to_string();
            rows.push(vec!["patience".to_owned(), patience, config.patience.origin.clone()]);
        }
        if config.offline {
            rows.push(vec!["offline".to_owned(), "true".to_owned(), String::new()]);
        }
        if let Some(index) = &config.index {
            rows.push(vec!["index".to_owned(), index.value.clone(), index.origin.clone()]);
        }
        for (url, place) in &config.mirrors {
            rows.push(vec![format!("mirror of {url}"), place.value.clone(), place.origin.clone()]);
        }
        if !origin {
            rows.iter_mut().for_each(|row| row.truncate(2));
            return table(&["SETTING", "VALUE"], &[false; 2], &rows);
        }
        table(&["SETTING", "VALUE", "ORIGIN"], &[false; 3], &rows)
    });
    Ok(0)
}
