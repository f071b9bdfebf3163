//! The program.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> =
        std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect();
    // A stage of a sandbox must be recognised before anything makes a thread.
    if let Some(status) = infradev::env::stage::run_if_asked(&arguments) {
        return ExitCode::from(u8::try_from(status).unwrap_or(1));
    }
    infradev::cli::run(&arguments)
}
