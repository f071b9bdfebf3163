#!/bin/bash
# The long runs, as root: 200 killed builds and mounts, 5000 random stacks against the kernel, and the whole fault
# bench of the store, which writes docs/reports/faults.md. Arguments choose tests: `tests/long.sh store::`.
set -euo pipefail
cd "$(dirname "$0")/.."
export INFRADEV_TEST_LONG=1
INFRADEV_TEST_REPORT=$(mktemp)
export INFRADEV_TEST_REPORT
trap 'rm -f "$INFRADEV_TEST_REPORT"' EXIT
began=$SECONDS
cargo test --release --test it -- --nocapture "$@"

# Without the benches of the store there is nothing to report.
[ -s "$INFRADEV_TEST_REPORT" ] || exit 0
mkdir -p docs/reports
cases() { awk -F'|' -v what="$1" '$2 ~ what { sum += $3 } END { print sum + 0 }' "$INFRADEV_TEST_REPORT"; }
{
    cat <<HEAD
# Faults: a run of the store's fault bench

Written by \`tests/long.sh\`, a release build. What is interrupted: \`tests/it/store/scenes.rs\`; how:
\`kills.rs\`, \`crash.rs\`, \`space.rs\`, \`power.rs\`, \`crowd.rs\`, \`wounds.rs\` and \`history.rs\` beside it.
After each case the store is opened again, every byte of it is verified, nothing that a root needs may be
missing, the same operation must complete, and a collection must leave no leftovers. A case that fails any of
this ends the run, so every case below passed: no byte lost or silently wrong, and no help by a person, except
that a damaged pin or \`state.json\` is given up by the command that the finding names.

| | |
|---|---|
| date | $(date -u +%F) |
| commit | $(git describe --always --dirty 2>/dev/null || echo unknown) |
| kernel | $(uname -sr), $(uname -m), $(nproc) processors |
| file system of the stores | $(stat -f -c %T "${INFRADEV_TEST_DIR:-/var/tmp}"); power cuts: ext4 in a loop file; small disks: tmpfs |
| whole run | $((SECONDS - began)) s |
| kill points | $(cases kill) |
| power cuts | $(cases power) |
| failing or full disks | $(($(cases ENOSPC) + $(cases EIO) + $(cases full) + $(cases tmpfs))) |
| damaged files | $(cases damaged) |

| kind | cases | seconds |
|---|---|---|
HEAD
    LC_ALL=C sort "$INFRADEV_TEST_REPORT"
} >docs/reports/faults.md
echo "wrote docs/reports/faults.md"
