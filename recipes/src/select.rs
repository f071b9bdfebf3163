//! Which tasks a word on the command line means.

use crate::name::TaskName;
use crate::nearest::nearest;
use crate::pattern::Pattern;

/// A word that does not say which tasks it means.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectError {
    /// No project, task or glob fits.
    #[error("`{selector}` names no project and no task")]
    Unknown {
        /// What was given.
        selector: String,
        /// Up to three names close to it.
        nearest: Vec<String>,
    },
    /// A task id without its project that several projects have.
    #[error("`{selector}` is a task of several projects: {}", candidates.join(", "))]
    Ambiguous {
        /// What was given.
        selector: String,
        /// The tasks that it may mean.
        candidates: Vec<String>,
    },
    /// A glob that cannot be one.
    #[error("`{selector}` is not a glob: {reason}")]
    Glob {
        /// What was given.
        selector: String,
        /// Why not.
        reason: String,
    },
}

impl SelectError {
    /// Returns the next step for the user, where there is one to suggest.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Unknown { nearest, .. } if nearest.is_empty() => None,
            Self::Unknown { nearest, .. } => Some(format!("did you mean {}?", nearest.join(", "))),
            Self::Ambiguous { candidates, .. } => Some(format!("write for instance {}", candidates.first()?)),
            Self::Glob { .. } => None,
        }
    }
}

/// Returns those of `tasks` that `selector` means: `all`, a project, a task as `project/id` or by its
/// id alone where that is unique, or a glob over either.
pub fn select(tasks: &[TaskName], selector: &str) -> Result<Vec<TaskName>, SelectError> {
    let keep = |wanted: &dyn Fn(&TaskName) -> bool| -> Vec<TaskName> {
        tasks.iter().filter(|task| wanted(task)).cloned().collect()
    };
    if selector == "all" {
        return Ok(tasks.to_vec());
    }
    let exact = keep(&|task| task.project == selector || task.to_string() == selector);
    if !exact.is_empty() {
        return Ok(exact);
    }
    let by_id = keep(&|task| task.id == selector);
    match by_id.len() {
        0 => {}
        1 => return Ok(by_id),
        _ => {
            let candidates = by_id.iter().map(TaskName::to_string).collect();
            return Err(SelectError::Ambiguous { selector: selector.to_owned(), candidates });
        }
    }
    if selector.contains(['*', '?', '[', '{']) {
        let glob = Pattern::new(selector)
            .map_err(|error| SelectError::Glob { selector: selector.to_owned(), reason: error.reason })?;
        let chosen = keep(&|task| {
            glob.matches(&task.to_string()) || glob.matches(&task.id) || glob.matches(&task.project)
        });
        if !chosen.is_empty() {
            return Ok(chosen);
        }
    }
    Err(SelectError::Unknown { selector: selector.to_owned(), nearest: nearest_names(tasks, selector) })
}

fn nearest_names(tasks: &[TaskName], selector: &str) -> Vec<String> {
    let mut names: Vec<String> = tasks.iter().map(TaskName::to_string).collect();
    names.extend(tasks.iter().map(|task| task.project.clone()));
    if !selector.contains('/') {
        names.extend(tasks.iter().map(|task| task.id.clone()));
    }
    names.sort();
    names.dedup();
    nearest(selector, names.iter().map(String::as_str), 3).into_iter().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tasks() -> Vec<TaskName> {
        [("megatron", "100"), ("verl", "3567"), ("verl", "4107"), ("vllm", "100")]
            .map(|(project, id)| TaskName::new(project, id))
            .to_vec()
    }

    fn check(selector: &str, expected: &[&str]) {
        let chosen = select(&tasks(), selector).expect(selector);
        assert_eq!(chosen.iter().map(TaskName::to_string).collect::<Vec<_>>(), expected, "{selector}");
    }

    #[test]
    fn a_selector_is_a_project_a_task_a_glob_or_all() {
        check("all", &["megatron/100", "verl/3567", "verl/4107", "vllm/100"]);
        check("verl", &["verl/3567", "verl/4107"]);
        check("verl/3567", &["verl/3567"]);
        check("4107", &["verl/4107"]);
        check("v*/1*", &["vllm/100"]);
        check("3*", &["verl/3567"]);
    }

    #[test]
    fn an_unknown_or_ambiguous_selector_suggests() {
        let hint = |selector| select(&tasks(), selector).expect_err(selector).hint().unwrap_or_default();
        assert_eq!(hint("verl/3568"), "did you mean verl/3567, verl/4107, verl?");
        assert_eq!(hint("vlm"), "did you mean vllm?");
        assert_eq!(hint("100"), "write for instance megatron/100");
    }
}
