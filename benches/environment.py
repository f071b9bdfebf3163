#!/usr/bin/env python3
"""How fast is an environment, beside a plain copy of the same files on the same disk?

usage: environment.py TASK [--infradev PROGRAM] [--copy DIR] [--import MODULE] [--rounds N]

Mounts TASK (as root), copies the mounted tree once to DIR with `cp -a`, and measures in turn, N rounds each:
mount (the whole process), walk + lstat, reading every file under 1 MiB, and importing MODULE in the sandbox's
own way (chroot). Prints medians and ratios to the copy; times alone mean nothing on a shared machine.
The page cache is warm for both: every measure runs once unrecorded.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import time


def timed(action):
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def walk(root):
    count = 0
    stack = [root]
    while stack:
        with os.scandir(stack.pop()) as entries:
            for entry in entries:
                entry.stat(follow_symlinks=False)
                count += 1
                if entry.is_dir(follow_symlinks=False):
                    stack.append(entry.path)
    return count


def read(root):
    total = 0
    for directory, _, names in os.walk(root):
        for name in names:
            path = os.path.join(directory, name)
            if not os.path.islink(path) and os.path.isfile(path) and os.path.getsize(path) < 1 << 20:
                with open(path, "rb") as file:
                    total += len(file.read())
    return total


def load(root, module):
    # torch opens /dev/urandom; the same mounts for both places, gone with the process.
    enter = 'mount --rbind /dev "$0/dev" && mount -t proc none "$0/proc" && exec chroot "$0" "$@"'
    command = ["unshare", "--mount", "sh", "-c", enter, root, "/opt/env/bin/python", "-B", "-c", f"import {module}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("task")
    parser.add_argument("--infradev", default="target/release/infradev")
    parser.add_argument("--copy", default="/var/tmp/infradev-bench-copy")
    parser.add_argument("--import", dest="module", default="torch")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()

    def infradev(*words):
        return subprocess.run([options.infradev, "--quiet", *words], check=True, capture_output=True, text=True).stdout

    mounts = []
    for number in range(4 * options.rounds):
        name = f"bench-mount-{number}"
        mounts.append(timed(lambda: infradev("env", "mount", options.task, "--name", name)))
        infradev("env", "rm", name)
    root = infradev("env", "mount", options.task, "--name", "bench").strip()
    try:
        if not os.path.isdir(options.copy):
            subprocess.run(["cp", "-a", root, options.copy], check=True)
        entries = walk(root)
        measures = {
            "walk + lstat": walk,
            "read files < 1 MiB": read,
            f"import {options.module}": lambda place: load(place, options.module),
        }
        rows = {}
        for what, measure in measures.items():
            times = {"copy": [], "environment": []}
            for number in range(options.rounds + 1):
                for place, path in (("copy", options.copy), ("environment", root)):
                    taken = timed(lambda: measure(path))
                    if number:
                        times[place].append(taken)
            rows[what] = {place: statistics.median(taken) for place, taken in times.items()}
    finally:
        infradev("env", "rm", "bench")
        shutil.rmtree(options.copy, ignore_errors=True)

    mounts.sort()
    print(f"{options.task}: {entries} entries")
    print(f"{'what':22} {'ext4 copy':>10} {'environment':>12} {'ratio':>6}")
    for what, row in rows.items():
        print(f"{what:22} {row['copy']:>9.2f}s {row['environment']:>11.2f}s {row['environment'] / row['copy']:>6.2f}")
    median, high = statistics.median(mounts), mounts[int(len(mounts) * 0.9)]
    print(f"env mount, whole process: median {1e3 * median:.1f} ms, 9 of 10 below {1e3 * high:.1f} ms")
    print(json.dumps({"task": options.task, "entries": entries, "seconds": rows, "mount_seconds": mounts}))


if __name__ == "__main__":
    main()
