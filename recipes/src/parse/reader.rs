//! A walk over a parsed TOML document that notes faults and goes on.
//!
//! Readers return an `Option`: nothing means that the fault is noted already. A table is read field
//! by field; `close` then objects to the keys that nobody asked for.

use std::cell::RefCell;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::SCHEMA;
use crate::error::{Place, RecipeError, RecipeErrors};
use crate::nearest::nearest;

/// A document that is being read, with the faults found so far.
pub(crate) struct Document<'a> {
    file: &'a str,
    text: &'a str,
    errors: RefCell<Vec<RecipeError>>,
}

impl<'a> Document<'a> {
    /// Reads `text` by `read`, which is given the fields of the document.
    pub(crate) fn read<T>(
        file: &'a str,
        text: &'a str,
        read: impl FnOnce(&mut Fields<'_>) -> Option<T>,
    ) -> Result<T, RecipeErrors> {
        let document = Document { file, text, errors: RefCell::default() };
        let (root, faults) = DeTable::parse_recoverable(text);
        for fault in faults {
            let span = fault.span().unwrap_or(0..0);
            document.note(&span, "", "a TOML document", fault.message().to_owned(), None);
        }
        if !document.errors.borrow().is_empty() {
            return Err(document.into_errors());
        }
        let mut fields = Fields::new(&document, root.get_ref(), 0..0, String::new());
        match read(&mut fields) {
            Some(value) if document.errors.borrow().is_empty() => Ok(value),
            _ => Err(document.into_errors()),
        }
    }

    fn into_errors(self) -> RecipeErrors {
        RecipeErrors::of(self.errors.into_inner()).expect("a reader that gives up has noted why")
    }

    fn note(&self, span: &Range<usize>, key: &str, expected: &str, found: String, hint: Option<String>) {
        let before = self.text.get(..span.start).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let place = Place {
            file: self.file.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            key: key.to_owned(),
        };
        let expected = expected.to_owned();
        self.errors.borrow_mut().push(RecipeError { place, expected, found, hint });
    }
}

/// One value of a document and the key path that leads to it.
#[derive(Clone)]
pub(crate) struct Item<'a> {
    document: &'a Document<'a>,
    value: &'a DeValue<'a>,
    span: Range<usize>,
    key: String,
}

impl<'a> Item<'a> {
    /// Notes that something else was expected here, and gives up.
    pub(crate) fn fail<T>(&self, expected: &str, found: impl Into<String>) -> Option<T> {
        self.document.note(&self.span, &self.key, expected, found.into(), None);
        None
    }

    /// Like [`fail`](Self::fail), with advice.
    pub(crate) fn fail_with_hint<T>(
        &self,
        expected: &str,
        found: impl Into<String>,
        hint: impl Into<String>,
    ) -> Option<T> {
        self.document.note(&self.span, &self.key, expected, found.into(), Some(hint.into()));
        None
    }

    fn wrong_type<T>(&self, expected: &str) -> Option<T> {
        let found = match self.value {
            DeValue::String(text) => format!("the string `{text}`"),
            DeValue::Integer(number) => format!("the integer {number}"),
            DeValue::Float(number) => format!("the float {number}"),
            DeValue::Boolean(value) => format!("{value}"),
            DeValue::Datetime(moment) => format!("the date {moment}"),
            DeValue::Array(_) => "an array".to_owned(),
            DeValue::Table(_) => "a table".to_owned(),
        };
        self.fail(expected, found)
    }

    /// Reads any string.
    pub(crate) fn string(&self) -> Option<String> {
        match self.value {
            DeValue::String(text) => Some(text.clone().into_owned()),
            _ => self.wrong_type("a string"),
        }
    }

    /// Reads a boolean.
    pub(crate) fn boolean(&self) -> Option<bool> {
        match self.value {
            DeValue::Boolean(value) => Some(*value),
            _ => self.wrong_type("true or false"),
        }
    }

    /// Reads a whole number that is not negative.
    pub(crate) fn natural(&self) -> Option<u64> {
        let DeValue::Integer(number) = self.value else {
            return self.wrong_type("a whole number");
        };
        let value = u64::from_str_radix(number.as_str(), number.radix()).ok();
        value.or_else(|| self.wrong_type("a whole number that is not negative"))
    }

    /// Reads a number that is not negative, with or without a fraction.
    pub(crate) fn number(&self) -> Option<f64> {
        let value = match self.value {
            DeValue::Integer(_) => return self.natural().map(|value| value as f64),
            DeValue::Float(number) => number.as_str().parse::<f64>().ok(),
            _ => None,
        };
        value
            .filter(|value| value.is_finite() && *value >= 0.0)
            .or_else(|| self.wrong_type("a number that is not negative"))
    }

    /// Reads a moment, quoted or not; returns its text.
    pub(crate) fn moment_text(&self) -> Option<String> {
        match self.value {
            DeValue::Datetime(moment) => Some(moment.to_string()),
            DeValue::String(text) => Some(text.clone().into_owned()),
            _ => self.wrong_type("a moment (RFC 3339)"),
        }
    }

    /// Reads an array, each element by `read`.
    pub(crate) fn list<T>(&self, read: impl Fn(&Item<'a>) -> Option<T>) -> Option<Vec<T>> {
        let DeValue::Array(values) = self.value else {
            return self.wrong_type("an array");
        };
        let read = values.iter().enumerate().map(|(index, value)| {
            read(&Item {
                document: self.document,
                value: value.get_ref(),
                span: value.span(),
                key: format!("{}[{index}]", self.key),
            })
        });
        // Every element is read, so that each fault is noted, before one failure fails the whole.
        read.collect::<Vec<_>>().into_iter().collect()
    }

    /// Reads a table with free keys: each key as text with its value by `read`.
    pub(crate) fn entries<T>(&self, read: impl Fn(&str, &Item<'a>) -> Option<T>) -> Option<Vec<(String, T)>> {
        let DeValue::Table(table) = self.value else {
            return self.wrong_type("a table");
        };
        let read = table.iter().map(|(name, value)| {
            let item = Item::of_entry(self.document, &self.key, name, value);
            Some((name.get_ref().to_string(), read(name.get_ref(), &item)?))
        });
        read.collect::<Vec<_>>().into_iter().collect()
    }

    /// Reads a table with fixed keys, and objects to all others.
    pub(crate) fn table<T>(&self, read: impl FnOnce(&mut Fields<'a>) -> Option<T>) -> Option<T> {
        let DeValue::Table(table) = self.value else {
            return self.wrong_type("a table");
        };
        let mut fields = Fields::new(self.document, table, self.span.clone(), self.key.clone());
        read(&mut fields)
    }

    fn of_entry(
        document: &'a Document<'a>,
        parent: &str,
        name: &'a Spanned<toml::de::DeString<'a>>,
        value: &'a Spanned<DeValue<'a>>,
    ) -> Self {
        // The span of `[header]` tables is the header; of an inline value, the value.
        let key = join(parent, name.get_ref());
        Item { document, value: value.get_ref(), span: value.span(), key }
    }
}

/// A table with fixed keys that is being read.
pub(crate) struct Fields<'a> {
    document: &'a Document<'a>,
    table: &'a DeTable<'a>,
    span: Range<usize>,
    key: String,
    known: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    fn new(document: &'a Document<'a>, table: &'a DeTable<'a>, span: Range<usize>, key: String) -> Self {
        Self { document, table, span, key, known: Vec::new() }
    }

    /// Returns the value of `name`, where there is one.
    pub(crate) fn get(&mut self, name: &'static str) -> Option<Item<'a>> {
        self.known.push(name);
        let (name, value) = self.table.get_key_value(name)?;
        Some(Item::of_entry(self.document, &self.key, name, value))
    }

    /// Reads a key that must be there.
    pub(crate) fn required<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&Item<'a>) -> Option<T>,
    ) -> Option<T> {
        match self.get(name) {
            Some(item) => read(&item),
            None => {
                let expected = format!("the key `{name}`");
                self.document.note(&self.span, &self.key, &expected, "no such key".to_owned(), None);
                None
            }
        }
    }

    /// Reads a key that may be absent: the outer `Option` is a fault, the inner one absence.
    pub(crate) fn optional<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&Item<'a>) -> Option<T>,
    ) -> Option<Option<T>> {
        match self.get(name) {
            Some(item) => read(&item).map(Some),
            None => Some(None),
        }
    }

    /// Reads a key that means the default of its type when absent.
    pub(crate) fn defaulted<T: Default>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&Item<'a>) -> Option<T>,
    ) -> Option<T> {
        self.optional(name, read).map(Option::unwrap_or_default)
    }

    /// Reads `schema`, which must be the version this crate knows.
    pub(crate) fn schema(&mut self) -> Option<()> {
        self.required("schema", |item| match item.value {
            DeValue::Integer(number) if number.as_str().parse() == Ok(SCHEMA) => Some(()),
            DeValue::Integer(number) => item.fail_with_hint(
                &format!("{SCHEMA}"),
                number.to_string(),
                "a newer infradev may read this document",
            ),
            _ => item.wrong_type("1"),
        })
    }

    /// Notes a fault of the table as a whole.
    pub(crate) fn fail<T>(&self, expected: &str, found: impl Into<String>) -> Option<T> {
        self.document.note(&self.span, &self.key, expected, found.into(), None);
        None
    }

    /// Objects to every key that was not asked for.
    pub(crate) fn close(&self) {
        for name in self.table.keys() {
            let text: &str = name.get_ref();
            if self.known.contains(&text) {
                continue;
            }
            let hint = match nearest(text, self.known.iter().copied(), 1).first() {
                Some(close) => format!("did you mean `{close}`?"),
                None => format!("known keys here: {}", self.known.join(", ")),
            };
            let key = join(&self.key, text);
            self.document.note(&name.span(), &key, "a known key", format!("`{text}`"), Some(hint));
        }
    }
}

fn join(parent: &str, name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let name = if name.chars().all(plain) { name.to_owned() } else { format!("{name:?}") };
    if parent.is_empty() { name } else { format!("{parent}.{name}") }
}
