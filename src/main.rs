//! The program.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Result<Vec<String>, _> =
        std::env::args_os().map(|argument| argument.into_string()).collect();
    let arguments = match arguments {
        Ok(arguments) => arguments,
        Err(argument) => return infradev::cli::refuse(&argument.to_string_lossy()),
    };
    // A stage of a sandbox must be recognised before anything makes a thread.
    if let Some(status) = infradev::env::stage::run_if_asked(&arguments) {
        return ExitCode::from(u8::try_from(status).unwrap_or(1));
    }
    infradev::cli::run(&arguments)
}
