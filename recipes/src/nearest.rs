//! The names that a mistyped one most likely meant.

/// Returns up to `count` of `names` that are close to `typed`, closest first.
pub(crate) fn nearest<'a>(
    typed: &str,
    names: impl IntoIterator<Item = &'a str>,
    count: usize,
) -> Vec<&'a str> {
    // A third of the letters wrong still reads as a slip; more reads as another word.
    let bound = typed.chars().count().max(3) / 3 + 1;
    let mut close: Vec<_> = names
        .into_iter()
        .map(|name| (distance(typed, name), name))
        .filter(|(distance, name)| *distance <= bound || contains(name, typed))
        .collect();
    close.sort();
    close.into_iter().take(count).map(|(_, name)| name).collect()
}

fn contains(name: &str, typed: &str) -> bool {
    typed.len() >= 3 && (name.contains(typed) || (name.len() >= 3 && typed.contains(name)))
}

/// Counts insertions, deletions, replacements and swaps of neighbours (optimal string alignment).
fn distance(left: &str, right: &str) -> usize {
    let (left, right): (Vec<_>, Vec<_>) = (left.chars().collect(), right.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=right.len()).collect();
    for i in 0..left.len() {
        let mut row = vec![i + 1];
        for j in 0..right.len() {
            let replaced = above[j] + usize::from(left[i] != right[j]);
            let mut best = replaced.min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && left[i] == right[j - 1] && left[i - 1] == right[j] {
                best = best.min(before[j - 1] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_slips_and_nothing_else() {
        let keys = ["source", "project", "variant"];
        assert_eq!(nearest("sorce", keys, 1), ["source"]);
        assert_eq!(nearest("porject", keys, 1), ["project"]);
        assert!(nearest("zzz", keys, 1).is_empty());
        assert_eq!(nearest("verl/356", ["verl/3567", "verl/3568", "vllm/1"], 3), ["verl/3567", "verl/3568"]);
    }
}
