"""Timing and tidying, for all questions."""

import os
import shutil
import statistics
import subprocess
import time


def have(program):
    return shutil.which(program) is not None


def quiet(*command, **options):
    """Runs a command that must succeed; returns what it wrote."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def timed(action):
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def in_turn(candidates, rounds):
    """Measures each of `candidates` (name, action, undo) once per round, after one that is not counted."""
    times = {name: [] for name, _, _ in candidates}
    for number in range(rounds + 1):
        for name, action, undo in candidates:
            seconds = timed(action)
            if undo:
                undo()
            if number:
                times[name].append(seconds)
    return times


def rows(times, ours):
    base = statistics.median(times[ours])
    found = []
    for name, seconds in times.items():
        median = statistics.median(seconds)
        row = {"what": name, "median ms": 1000 * median, "p99 ms": 1000 * percentile(seconds, 99)}
        row["x infradev"] = median / base
        found.append(row)
    return found


def percentile(seconds, percent):
    """The value that `percent` of them do not exceed; of less than a hundred the 99th is the largest."""
    ordered = sorted(seconds)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def disk(*roots):
    """Bytes on disk (st_blocks) below `roots`, each inode once, mounts not entered."""
    total, seen = 0, set()
    for root in map(str, roots):
        device = os.lstat(root).st_dev
        stack = [root]
        while stack:
            directory = stack.pop()
            with os.scandir(directory) as entries:
                for entry in entries:
                    found = entry.stat(follow_symlinks=False)
                    if found.st_dev != device or (found.st_dev, found.st_ino) in seen:
                        continue
                    seen.add((found.st_dev, found.st_ino))
                    total += found.st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        stack.append(entry.path)
    return total


def remove(path):
    subprocess.run(["rm", "-rf", "--one-file-system", str(path)], check=False)
