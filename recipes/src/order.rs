//! The order in which build steps can run.

use std::collections::BTreeMap;

use crate::recipe::BuildStep;

/// Returns the names along a cycle of `needs`, first and last alike, where there is one.
pub(crate) fn find_cycle(steps: &[BuildStep]) -> Option<Vec<String>> {
    sort(steps).err()
}

/// Orders `steps` so that each follows what it needs, otherwise as written; needs that are no step are left aside.
///
/// Fails with the names along a cycle.
pub(crate) fn sort(steps: &[BuildStep]) -> Result<Vec<usize>, Vec<String>> {
    let by_name = steps.iter().enumerate().map(|(index, step)| (step.name.as_str(), index)).collect();
    let mut walk =
        Walk { steps, by_name, done: vec![false; steps.len()], path: Vec::new(), order: Vec::new() };
    for index in 0..steps.len() {
        walk.visit(index)?;
    }
    Ok(walk.order)
}

struct Walk<'a> {
    steps: &'a [BuildStep],
    by_name: BTreeMap<&'a str, usize>,
    done: Vec<bool>,
    path: Vec<usize>,
    order: Vec<usize>,
}

impl Walk<'_> {
    fn visit(&mut self, index: usize) -> Result<(), Vec<String>> {
        if self.done[index] {
            return Ok(());
        }
        if let Some(start) = self.path.iter().position(|on_path| *on_path == index) {
            let cycle = self.path[start..].iter().chain([&index]);
            return Err(cycle.map(|index| self.steps[*index].name.clone()).collect());
        }
        self.path.push(index);
        for need in &self.steps[index].needs {
            if let Some(&needed) = self.by_name.get(need.as_str()) {
                self.visit(needed)?;
            }
        }
        self.path.pop();
        self.done[index] = true;
        self.order.push(index);
        Ok(())
    }
}
