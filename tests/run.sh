#!/bin/bash
# Runs every test: the README's second command, and all that continuous integration does.
# Installs what the tests need where it may (Debian, Ubuntu; as root); elsewhere tests that lack something skip.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(docker-registry openssl skopeo umoci crun squashfs-tools btrfs-progs xfsprogs erofs-utils mmdebstrap uidmap attr g++ python3 python3-dev python3-pip git patch util-linux ca-certificates)
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    missing=()
    for package in "${packages[@]}"; do
        dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed ||
            missing+=("$package")
    done
    if [ ${#missing[@]} -gt 0 ]; then
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq >/dev/null && apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
            echo "could not install: ${missing[*]}; tests that need them are skipped" >&2
    fi
fi

cargo fmt --all --check
cargo clippy --release --workspace --all-targets -- -D warnings
cargo test --release --workspace
