#!/bin/bash
# The long runs: 200 killed builds and mounts, 5000 random stacks against the kernel, as root.
set -euo pipefail
cd "$(dirname "$0")/.."
export INFRADEV_TEST_LONG=1
cargo test --release --test it -- --nocapture "$@"
