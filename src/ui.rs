//! The terminal: the only place that prints.
//!
//! Standard output is data, standard error is talk. Nothing depends on colour, and a closed pipe is quiet.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::Serialize;

use crate::error::CommandError;

/// When to use colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum ColorChoice {
    /// On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// How progress is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum ProgressChoice {
    /// A moving line on a terminal, plain lines elsewhere.
    #[default]
    Auto,
    /// A line for each finished step.
    Plain,
    /// A moving line besides.
    Tty,
    /// A JSON object for each event, on standard error.
    Json,
    /// Nothing.
    None,
}

/// The version of the form of all `--json` output.
pub const SCHEMA_VERSION: u32 = 1;

/// Talks to the user.
#[derive(Debug)]
pub struct Ui {
    json: bool,
    quiet: bool,
    verbose: bool,
    color: bool,
    progress: ProgressChoice,
    status: Mutex<Status>,
    /// Why standard output could not be written.
    unwritten: OnceLock<String>,
    /// Warnings that are given once.
    warned: Mutex<HashSet<String>>,
}

#[derive(Debug, Default)]
struct Status {
    shown: bool,
    running: Vec<(String, Instant)>,
    last: Option<Instant>,
}

/// What the command line and the surroundings say about output.
#[derive(Debug, Clone, Copy)]
pub struct UiOptions {
    /// Data as JSON.
    pub json: bool,
    /// No talk but warnings and errors.
    pub quiet: bool,
    /// More talk.
    pub verbose: bool,
    /// Colour.
    pub color: ColorChoice,
    /// Progress.
    pub progress: ProgressChoice,
    /// NO_COLOR is set.
    pub no_color: bool,
    /// CI is set: no moving lines.
    pub ci: bool,
}

impl Ui {
    /// Decides how to talk.
    pub fn new(options: UiOptions) -> Self {
        let terminal = io::stderr().is_terminal();
        let progress = match options.progress {
            _ if options.quiet => ProgressChoice::None,
            ProgressChoice::Auto if terminal && !options.ci => ProgressChoice::Tty,
            ProgressChoice::Auto => ProgressChoice::Plain,
            other => other,
        };
        let color = match options.color {
            ColorChoice::Auto => terminal && !options.no_color,
            ColorChoice::Always => true,
            ColorChoice::Never => false,
        };
        let (json, quiet, verbose) = (options.json, options.quiet, options.verbose);
        let (status, unwritten, warned) = (Mutex::default(), OnceLock::new(), Mutex::default());
        Self { json, quiet, verbose, color, progress, status, unwritten, warned }
    }

    /// Whether data is wanted as JSON.
    pub fn json(&self) -> bool {
        self.json
    }

    /// Writes data: `value` as JSON, or `text` for people.
    pub fn data(&self, value: &impl Serialize, text: impl FnOnce() -> String) {
        if self.json {
            #[derive(Serialize)]
            struct Versioned<'a, T> {
                schema_version: u32,
                #[serde(flatten)]
                value: &'a T,
            }
            let versioned = Versioned { schema_version: SCHEMA_VERSION, value };
            self.print(&format!("{}\n", serde_json::to_string_pretty(&versioned).expect("plain data")));
        } else {
            self.print(&text());
        }
    }

    /// Writes text to standard output.
    pub fn print(&self, text: &str) {
        self.clear_status();
        let mut output = io::stdout().lock();
        match output.write_all(plain(text).as_bytes()).and_then(|()| output.flush()) {
            // A reader that has gone away has seen enough.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                let _first_one_counts = self.unwritten.set(error.to_string());
            }
            _ => {}
        }
    }

    /// Why some data was not written, if it was not.
    pub fn unwritten(&self) -> Option<&str> {
        self.unwritten.get().map(String::as_str)
    }

    /// Says something that is good to know.
    pub fn note(&self, text: impl Display) {
        if !self.quiet {
            self.talk(&plain(&format!("{text}")));
        }
    }

    /// Says something that only matters to those who look closely.
    pub fn detail(&self, text: impl Display) {
        if self.verbose {
            self.talk(&plain(&format!("{text}")));
        }
    }

    /// Warns.
    pub fn warn(&self, text: impl Display) {
        self.talk(&format!("{} {}", self.paint("warning:", "33;1"), plain(&text.to_string())));
    }

    /// Warns of something that may come up many times.
    pub fn warn_once(&self, text: impl Display) {
        let text = text.to_string();
        if self.warned.lock().unwrap_or_else(PoisonError::into_inner).insert(text.clone()) {
            self.warn(text);
        }
    }

    /// Reports a failure and what to do about it.
    pub fn error(&self, error: &CommandError) {
        self.talk(&format!("{} {}", self.paint("error:", "31;1"), plain(&error.message)));
        for hint in &error.hints {
            self.talk(&format!("{} {}", self.paint("hint:", "36;1"), plain(hint)));
        }
    }

    fn paint(&self, text: &str, code: &str) -> String {
        if self.color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn talk(&self, text: &str) {
        self.clear_status();
        let _nobody_reads = writeln!(io::stderr().lock(), "{text}");
    }

    /// Says that a step has begun.
    pub fn started(&self, label: &str) {
        let mut status = self.lock();
        status.running.push((label.to_owned(), Instant::now()));
        if self.progress == ProgressChoice::Json {
            self.event(&serde_json::json!({ "event": "started", "step": label }));
        }
        self.draw(&mut status, true);
    }

    /// Says that a step has ended, in one word, with a remark such as its size.
    pub fn finished(&self, label: &str, word: &str, remark: &str) {
        let elapsed = {
            let mut status = self.lock();
            let at = status.running.iter().position(|(running, _)| running == label);
            at.map(|at| status.running.remove(at).1.elapsed())
        };
        let seconds = elapsed.unwrap_or_default().as_secs_f64();
        match self.progress {
            ProgressChoice::None => {}
            ProgressChoice::Json => self.event(
                &serde_json::json!({ "event": word, "step": label, "seconds": seconds, "remark": remark }),
            ),
            _ => {
                let (label, remark) = (plain(label), plain(remark));
                let word = self.paint(&format!("{word:>9}"), if word == "failed" { "31;1" } else { "32;1" });
                self.talk(format!("{word}  {label:<48}  {seconds:>6.1} s  {remark}").trim_end());
            }
        }
        self.draw(&mut self.lock(), true);
    }

    /// Refreshes the moving line with a remark on the running step, a few times a second at most.
    pub fn moving(&self, label: &str, remark: impl FnOnce() -> String) {
        if self.progress != ProgressChoice::Tty {
            return;
        }
        let mut status = self.lock();
        if status.last.is_some_and(|last| last.elapsed() < Duration::from_millis(200)) {
            return;
        }
        status.last = Some(Instant::now());
        let line = format!("          {label}  {}", remark());
        show(&line, &mut status);
    }

    fn event(&self, value: &serde_json::Value) {
        let _nobody_reads = writeln!(io::stderr().lock(), "{value}");
    }

    fn draw(&self, status: &mut Status, now: bool) {
        if self.progress == ProgressChoice::Tty && now && !status.running.is_empty() {
            let labels: Vec<&str> = status.running.iter().map(|(label, _)| label.as_str()).collect();
            let line = format!("  running  {}", labels.join(", "));
            show(&line, status);
        }
    }

    fn clear_status(&self) {
        let mut status = self.lock();
        if std::mem::take(&mut status.shown) {
            let _nobody_reads = write!(io::stderr().lock(), "\r\x1b[K");
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn show(line: &str, status: &mut Status) {
    let width =
        rustix::termios::tcgetwinsize(io::stderr()).map_or(80, |size| usize::from(size.ws_col).max(20));
    let line: String = plain(line).chars().take(width - 1).collect();
    let _nobody_reads = write!(io::stderr().lock(), "\r\x1b[K{line}");
    status.shown = true;
}

/// Shows control characters of `text`, but for line ends and tabs: names from archives and words of servers are in it,
/// which must not speak to the terminal.
fn plain(text: &str) -> Cow<'_, str> {
    let speaks = |character: char| character.is_control() && !matches!(character, '\n' | '\t');
    if !text.contains(speaks) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match speaks(character) {
            true => shown.extend(character.escape_default()),
            false => shown.push(character),
        }
    }
    Cow::Owned(shown)
}

/// Returns a number of bytes for people, in decimal units.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    if count < 1000 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1000.0;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    if value < 10.0 { format!("{value:.1} {}", UNITS[unit]) } else { format!("{value:.0} {}", UNITS[unit]) }
}

/// Returns a number of things for people: `1 layer`, `2 layers`.
pub fn counted(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// Lays out rows below a head; all columns but the first are aligned to the right where `right` says so.
pub fn table(head: &[&str], right: &[bool], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let head: Vec<String> = head.iter().map(|&cell| cell.to_owned()).collect();
    let mut text = String::new();
    for row in std::iter::once(&head).chain(rows) {
        let mut line = String::new();
        for (at, cell) in row.iter().enumerate() {
            let padding = " ".repeat(widths[at].saturating_sub(cell.chars().count()));
            let cell = if right[at] { padding + cell } else { cell.clone() + &padding };
            line.push_str(&cell);
            line.push_str("  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_for_people() {
        for (count, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 kB"),
            (23_456, "23 kB"),
            (999_600, "1.0 MB"),
            (7_300_000_000, "7.3 GB"),
        ] {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn names_do_not_speak_to_the_terminal() {
        assert_eq!(plain("a\tb\n"), "a\tb\n");
        assert_eq!(plain("\x1b]0;owned\x07\r\u{9b}2Jé"), "\\u{1b}]0;owned\\u{7}\\r\\u{9b}2Jé");
    }

    #[test]
    fn columns_line_up() {
        let rows = vec![vec!["a".into(), "10".into()], vec!["long".into(), "7".into()]];
        assert_eq!(table(&["name", "n"], &[false, true], &rows), "name   n\na     10\nlong   7\n");
    }
}
