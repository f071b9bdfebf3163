#!/bin/bash
# Runs the conformance list and the quickstart's checks on an older kernel: Debian's own 6.1, in an emulated machine
# without network, where ordinary users have farms and root has no images. On demand, as root, on Debian 12 or
# with a program that was built there. Emulated in software: twenty minutes on two cores.
#
#   tests/guest.sh [FILTER of tests; default: conformance]
set -euo pipefail
cd "$(dirname "$0")/.."
suite=${GUEST_SUITE:-bookworm}
place=${INFRADEV_TEST_DIR:-/var/tmp}/infradev-guest
limit=${GUEST_SECONDS:-2400}

for program in qemu-system-x86_64 mmdebstrap mkfs.ext4; do
    command -v "$program" >/dev/null || PATH=$PATH:/usr/sbin:/sbin command -v "$program" >/dev/null || {
        echo "tests/guest.sh needs $program (apt-get install qemu-system-x86 mmdebstrap e2fsprogs)" >&2
        exit 3
    }
done
PATH=$PATH:/usr/sbin:/sbin
mkdir -p "$place"

# The guest's system, made once: the kernel comes from the distribution, through whatever apt is set up to use.
if [ ! -e "$place/$suite.tar" ]; then
    mmdebstrap --format=tar --variant=minbase --include=linux-image-cloud-amd64,python3,ca-certificates,git,patch,util-linux,kmod,iproute2 \
        "$suite" "$place/$suite.tar.partial"
    mv "$place/$suite.tar.partial" "$place/$suite.tar"
fi

# What is tested: the program, the tests, and a store that was built here.
cargo build --release
program=$(cargo build --release --message-format=json 2>/dev/null | sed -n 's/.*"executable":"\([^"]*\/infradev\)".*/\1/p' | head -1)
tests=$(cargo test --release --test it --no-run --message-format=json 2>/dev/null | sed -n 's/.*"executable":"\([^"]*\/it-[^"]*\)".*/\1/p' | head -1)
[ -e "$place/store/format" ] || "$program" --store "$place/store" quickstart

root=$place/root
rm -rf "$root" "$place"/*.ext4
mkdir -p "$root"
tar --extract --file "$place/$suite.tar" --directory "$root" --exclude './dev/*'
mkdir -p "$root/store" "$root/guest" "$root$(dirname "$program")" "$root$(dirname "$tests")"
cp "$program" "$root$program"
cp "$tests" "$root$tests"
cat >"$root/guest/as-user" <<GUEST
#!/bin/bash
# As the owner of the store.
set -u
cd /var/tmp
export HOME=/var/tmp/home INFRADEV_TEST_DIR=/var/tmp INFRADEV_STORE=/store/store PATH=/usr/bin:/bin:/usr/sbin:/sbin
mkdir -p \$HOME
failed=0
"$program" doctor | tee doctor
grep -q 'back end farm' doctor || { echo "FAILED: not by farm"; failed=1; }
for task in megatron/0.12.0 megatron/0.13.0 verl/0.4.1 verl/0.5.0 vllm/0.6.3 vllm/0.7.3; do
    "$program" env exec quickstart-\$task -- python /opt/env/share/quickstart/check.py ||
        { echo "FAILED: quickstart-\$task"; failed=1; }
done
"$program" --progress none verify --read-data || { echo "FAILED: verify"; failed=1; }
RUST_BACKTRACE=0 "$tests" --nocapture --test-threads 1 "${1:-conformance}" || { echo "FAILED: tests"; failed=1; }
# This kernel's tmpfs has no attributes of users, which every overlay without root needs: a store on it gets full copies.
export INFRADEV_STORE=/dev/shm/store INFRADEV_STORE_RO=/store/store
"$program" doctor | grep 'back end copy' || { echo "FAILED: not by copy on tmpfs"; failed=1; }
"$program" env exec quickstart-verl/0.4.1 -- python /opt/env/share/quickstart/check.py || { echo "FAILED: tmpfs"; failed=1; }
exit \$failed
GUEST
cat >"$root/guest/init" <<GUEST
#!/bin/bash
# Process 1 of the guest.
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs devtmpfs /dev 2>/dev/null
mkdir -p /dev/pts /dev/shm; mount -t devpts devpts /dev/pts; mount -t tmpfs tmpfs /dev/shm
mount /dev/vdb /store; mount -o remount,rw /; ip link set lo up; modprobe overlay; modprobe loop; modprobe erofs
echo "guest: kernel \$(uname -r)"
failed=0
chown 1000:1000 /store; chmod 1777 /var/tmp
setpriv --reuid 1000 --regid 1000 --clear-groups /guest/as-user || failed=1
# Root has neither images (data-only layers are of 6.5) nor stubs here: farms too.
"$program" --store /var/tmp/root-store doctor
"$program" --store /var/tmp/root-store doctor | grep -q 'back end farm' || { echo "FAILED: root not by farm"; failed=1; }
RUST_BACKTRACE=0 INFRADEV_TEST_DIR=/var/tmp "$tests" --test-threads 1 conformance::privileged_every || failed=1
[ \$failed = 0 ] && echo "guest: all passed" || echo "guest: something failed"
sync; echo o >/proc/sysrq-trigger; sleep 60
GUEST
chmod 755 "$root/guest/as-user" "$root/guest/init"
mkdir -p "$place/disk"
rm -rf "$place/disk/store"
cp -a "$place/store" "$place/disk/store"
rm -rf "$place/disk/store/images" "$place/disk/store/stubs" "$place/disk/store/farm"
mkdir "$place/disk/store/images" "$place/disk/store/stubs" "$place/disk/store/farm"
chown -R 1000:1000 "$place/disk"
mkfs.ext4 -q -d "$root" "$place/root.ext4" 4G
mkfs.ext4 -q -d "$place/disk" "$place/store.ext4" 2G
kernel=$(ls "$root"/boot/vmlinuz-* | tail -1)
initrd=$(ls "$root"/boot/initrd.img-* | tail -1)

timeout "$limit" qemu-system-x86_64 -machine q35 -accel tcg,thread=multi -cpu max -smp 2 -m 2048 -nographic -no-reboot -nic none \
    -kernel "$kernel" -initrd "$initrd" -append "console=ttyS0 root=/dev/vda rw quiet init=/guest/init" \
    -drive "file=$place/root.ext4,format=raw,if=virtio" -drive "file=$place/store.ext4,format=raw,if=virtio" |
    tee "$place/log"
grep -q '^guest: all passed' "$place/log"
