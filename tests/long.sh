#!/bin/bash
# The long runs, as root: 200 killed builds and mounts, 5000 random stacks against the kernel, 100 real wheels beside
# pip (380 MB of downloads, kept), and the fault bench of the store, which writes docs/reports/faults.md.
# `tests/long.sh bench` runs the bench alone, in some minutes; other arguments choose tests.
set -euo pipefail
cd "$(dirname "$0")/.."
export INFRADEV_TEST_LONG=1
began=$SECONDS

run() { cargo test --release --test it -- --nocapture "$@"; }

# What was written before a kill or an error is as safe in memory as on a disk, and does not wait for it.
in_memory=(store::kills store::space store::crowd store::history)
on_disk=(store::power store::wounds)

case "${1:-}" in
"" | bench) ;;
*)
    run "$@"
    exit
    ;;
esac

INFRADEV_TEST_REPORT=$(mktemp)
export INFRADEV_TEST_REPORT
trap 'rm -f "$INFRADEV_TEST_REPORT"' EXIT
INFRADEV_TEST_DIR=/dev/shm run "${in_memory[@]}"
run "${on_disk[@]}"
if [ "${1:-}" != bench ]; then
    skip=()
    for name in "${in_memory[@]}" "${on_disk[@]}"; do skip+=(--skip "$name"); done
    run "${skip[@]}"
fi

cases() { awk -F'|' -v what="$1" '$2 ~ what { sum += $3 } END { print sum + 0 }' "$INFRADEV_TEST_REPORT"; }
mkdir -p docs/reports
{
    cat <<HEAD
# Faults: a run of the store's fault bench

Written by \`tests/long.sh\`, on a release build. What is interrupted: \`tests/it/store/scenes.rs\`; how:
\`kills.rs\`, \`space.rs\`, \`power.rs\`, \`crowd.rs\`, \`wounds.rs\`, \`history.rs\` and \`crash.rs\` beside it.
After each case the store is opened again, every byte of it is verified, nothing that a root needs may be
missing, the same operation must complete, and a collection must leave no leftovers. A case that fails any of
this ends the run, so every case below passed: no byte lost or silently wrong, and no help by a person, except
that a damaged pin or \`state.json\` is given up by the command that the finding names.

| | |
|---|---|
| date | $(date -u +%F) |
| commit | $(git log -1 --format=%h -- store src layers recipes tests) |
| kernel | $(uname -sr), $(uname -m), $(nproc) processors |
| file systems | $(findmnt --noheadings --output FSTYPE --target "${INFRADEV_TEST_DIR:-/var/tmp}") for damage and for what is killed at random moments; ext4 in a loop file for power cuts; tmpfs for the rest |
| whole run | $((SECONDS - began)) s |
| kill points | $(cases "kill -9") |
| power cuts | $(cases power) |
| failing or full disks | $(cases "ENOSPC|EIO|full disk|tmpfs") |
| processes stopped at a change | $(cases SIGSTOP) |
| damaged files | $(cases damaged) |

| kind | cases | seconds |
|---|---|---|
HEAD
    LC_ALL=C sort "$INFRADEV_TEST_REPORT"
} >docs/reports/faults.md
echo "wrote docs/reports/faults.md"
