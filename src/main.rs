//! The program.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(status) = infradev::env::stage::run_if_asked(&arguments) {
        return ExitCode::from(status as u8);
    }
    ExitCode::SUCCESS
}
