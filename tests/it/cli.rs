//! The command line as users meet it: words, exit codes, output forms.

mod bad_input;
mod forms;
pub(crate) mod help;
mod import;
mod life;
