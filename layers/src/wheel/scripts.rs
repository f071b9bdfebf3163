//! Scripts: the ones a wheel brings, and the ones its entry points ask for.

use std::io::{Read, Seek};

use zip::ZipArchive;

use super::{WheelError, read_text};
use crate::path::TreePath;

/// Replaces a first line of `#!python` or `#!pythonw` by one that names the environment's interpreter.
pub(super) fn with_shebang(content: Vec<u8>, prefix: &TreePath) -> Vec<u8> {
    let line = content.split(|&byte| byte == b'\n').next().unwrap_or_default();
    if !line.starts_with(b"#!python") {
        return content;
    }
    let rest = &content[line.len()..];
    let mut replaced = format!("#!/{}/bin/python", String::from_utf8_lossy(prefix.as_bytes())).into_bytes();
    // Arguments of the original line are kept; a carriage return would become part of the interpreter's name.
    let arguments = line.iter().position(|&byte| byte == b' ').map_or(&[][..], |at| &line[at..]);
    replaced.extend_from_slice(arguments.strip_suffix(b"\r").unwrap_or(arguments));
    replaced.extend_from_slice(rest);
    replaced
}

/// Returns the scripts that `entry_points.txt` asks for, as name and text, sorted by name.
pub(super) fn generated<R: Read + Seek>(
    zip: &mut ZipArchive<R>,
    dist_info: &str,
    prefix: &TreePath,
) -> Result<Vec<(String, String)>, WheelError> {
    let entry = format!("{dist_info}/entry_points.txt");
    let Some(text) = read_text(zip, &entry)? else { return Ok(vec![]) };
    let mut scripts = vec![];
    let mut wanted = false;
    for line in text.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix('[') {
            wanted = matches!(section.trim_end_matches(']').trim(), "console_scripts" | "gui_scripts");
        } else if wanted && !line.is_empty() && !line.starts_with(['#', ';']) {
            let invalid = || WheelError::Entry {
                entry: entry.clone(),
                problem: format!("has the invalid line `{line}`"),
            };
            let (name, reference) = line.split_once('=').ok_or_else(invalid)?;
            // Extras after the reference, as in `module:function [extra]`, do not matter to the script.
            let reference = reference.split('[').next().unwrap_or_default().trim();
            let (module, function) = reference.split_once(':').ok_or_else(invalid)?;
            let name = name.trim();
            if name.is_empty()
                || name.contains('/')
                || !is_dotted(module.trim())
                || !is_dotted(function.trim())
            {
                return Err(invalid());
            }
            scripts.push((name.to_owned(), script(prefix, module.trim(), function.trim())));
        }
    }
    scripts.sort();
    scripts.dedup_by(|left, right| left.0 == right.0);
    Ok(scripts)
}

fn is_dotted(reference: &str) -> bool {
    !reference.is_empty()
        && reference.chars().all(|character| character.is_alphanumeric() || matches!(character, '_' | '.'))
}

fn script(prefix: &TreePath, module: &str, function: &str) -> String {
    let import = function.split('.').next().unwrap_or(function);
    let prefix = String::from_utf8_lossy(prefix.as_bytes());
    format!(
        "#!/{prefix}/bin/python\nimport sys\n\nfrom {module} import {import}\n\nif __name__ == \"__main__\":\n    sys.exit({function}())\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shebangs() {
        let prefix: TreePath = "opt/env".parse().unwrap();
        for (before, after) in [
            ("#!python\nx", "#!/opt/env/bin/python\nx"),
            ("#!pythonw -E\r\nx", "#!/opt/env/bin/python -E\nx"),
            ("#!/bin/sh\nx", "#!/bin/sh\nx"),
            ("\u{7f}ELF", "\u{7f}ELF"),
        ] {
            let replaced = with_shebang(before.as_bytes().to_vec(), &prefix);
            assert_eq!(String::from_utf8(replaced).unwrap(), after);
        }
    }
}
