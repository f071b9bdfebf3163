#!/bin/bash
# Fuzzes one target for some seconds (default 1200), from seeds that are made here. Needs cargo-fuzz.
# Instrumentation is an unstable option of the compiler, hence RUSTC_BOOTSTRAP.
set -euo pipefail
cd "$(dirname "$0")"
target=${1:?"a target: layer_archive, wheel, layer_decoder, recipe"}
seconds=${2:-1200}
seeds=$(mktemp -d) && corpus=${INFRADEV_FUZZ_CORPUS:-$PWD/corpus/$target} && mkdir -p "$corpus"
trap 'rm -rf "$seeds"' EXIT

case $target in
layer_archive)
    mkdir "$seeds/tree" && (cd "$seeds/tree" && mkdir -p d/e && echo x >d/f && ln d/f d/g && ln -s f d/l && : >d/.wh.gone && : >d/e/.wh..wh..opq)
    long=$(printf 'n%.0s' $(seq 150))
    echo x >"$seeds/tree/$long"
    for format in v7 ustar gnu pax; do
        tar --format=$format -cf "$corpus/$format.tar" -C "$seeds/tree" . 2>/dev/null || true
    done
    gzip -k -f "$corpus/gnu.tar"
    ;;
wheel)
    python3 - "$corpus" <<'P'
import sys, zipfile
for name, method in (("stored", zipfile.ZIP_STORED), ("deflated", zipfile.ZIP_DEFLATED)):
    with zipfile.ZipFile(f"{sys.argv[1]}/{name}.whl", "w", method) as wheel:
        wheel.writestr("a/__init__.py", "x = 1\n")
        wheel.writestr("a-1.data/scripts/s", "#!python\n")
        wheel.writestr("a-1.data/data/share/d", "d")
        wheel.writestr("a-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
        wheel.writestr("a-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: a\nVersion: 1\n")
        wheel.writestr("a-1.dist-info/entry_points.txt", "[console_scripts]\nt = a:main\n")
        wheel.writestr("a-1.dist-info/RECORD", "a/__init__.py,,\n")
P
    ;;
layer_decoder) xxd -r -p ../../layers/testdata/golden-layer.hex >"$corpus/golden" 2>/dev/null || python3 -c "
import sys; open(sys.argv[1], 'wb').write(bytes.fromhex(open('../../layers/testdata/golden-layer.hex').read()))" "$corpus/golden" ;;
recipe) find ../../recipes/catalog ../../recipes/testdata -name '*.toml' -size -20k -exec sh -c 'cp "$1" "$2/$(echo "$1" | tr / _)"' _ {} "$corpus" \; ;;
*) echo "no target $target" >&2; exit 2 ;;
esac
export RUSTC_BOOTSTRAP=1
exec cargo fuzz run --fuzz-dir . --sanitizer none "$target" "$corpus" -- -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -print_final_stats=1
