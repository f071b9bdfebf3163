"""How long until a command runs in the environment of a task, alone and many at once?

Every peer gets the same files: a plain copy (`cp -a`) of the mounted environment, or the same packages.
bubblewrap assembles nothing, it only enters what is there: its rows are the floor, not a rival.
"""

import contextlib
import os
import subprocess
import time
from pathlib import Path

from measure import have, in_turn, percentile, quiet, remove, rows

CROWD = 64
# Peers that take seconds.
SLOW_ROUNDS = 3


def run(options):
    task, = options.arguments
    work, infradev, notes = Path(options.work), os.path.abspath(options.infradev), []
    remove(work)
    work.mkdir(parents=True)
    with contextlib.ExitStack() as last:
        last.callback(remove, work)
        name = f"peers-{os.getpid()}"
        last.callback(subprocess.run, [infradev, "env", "rm", name], capture_output=True)
        tree = quiet(infradev, "env", "mount", task, "--name", name).strip()
        plain = work / "plain"
        quiet("cp", "-a", tree, plain)
        entries = sum(len(names) + len(files) for _, names, files in os.walk(plain))
        notes.append(f"{task}: {entries} entries, {int(quiet('du', '-sb', plain).split()[0]) / 1e9:.1f} GB")
        again = f"{name}-again"
        last.callback(subprocess.run, [infradev, "env", "rm", again], capture_output=True)
        candidates = [
            ("infradev env mount", lambda: quiet(infradev, "env", "mount", task, "--name", again),
             lambda: quiet(infradev, "env", "rm", again)),
            ("infradev env exec -- true", lambda: quiet(infradev, "env", "exec", task, "--", "true"), None),
        ]
        entering = list(bubblewrap(plain, work, notes))
        candidates += [(what, lambda command=command(0): quiet(*command), None) for what, command in entering]
        found = rows(in_turn(candidates, options.rounds), "infradev env mount")
        found += crowd("infradev env exec", lambda _: [infradev, "env", "exec", task, "--", "true"], options)
        for what, command in entering:
            found += crowd(what, command, options)
        for peer in (copied, installed, container):
            # One after the other: each fills the disk with the environment once more.
            with contextlib.ExitStack() as after:
                try:
                    if candidate := peer(plain, work, notes, after):
                        found += rows(in_turn([candidate], SLOW_ROUNDS), candidate[0])
                except SystemExit as error:
                    notes.append(f"{peer.__name__}: {str(error).splitlines()[-1]}")
        ours = found[0]["median ms"]
        for row in found:
            row["x infradev"] = row["median ms"] / ours
    notes.append("ratios are to `infradev env mount`; `at once` rows are the wall time of all, per environment")
    return found, notes


def bubblewrap(plain, work, notes):
    """How bwrap enters the plain copy: as it is, and below an overlay."""
    if not have("bwrap"):
        notes.append("bwrap is not installed")
        return
    version = quiet("bwrap", "--version").strip()
    surroundings = ["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "true"]
    yield f"{version} --ro-bind", lambda _: ["bwrap", "--unshare-all", "--ro-bind", plain, "/", *surroundings]
    if "--overlay-src" not in quiet("bwrap", "--help"):
        notes.append(f"{version} has no --overlay")
        return

    def overlay(number):
        upper, scratch = work / f"upper-{number}", work / f"scratch-{number}"
        upper.mkdir(exist_ok=True)
        scratch.mkdir(exist_ok=True)
        return ["bwrap", "--unshare-all", "--overlay-src", plain, "--overlay", upper, scratch, "/", *surroundings]

    yield f"{version} --overlay", overlay


def crowd(what, command, options):
    """Starts many at once, some times: the wall time of all by their number, and how long each one took."""
    commands = [[str(word) for word in command(number)] for number in range(CROWD)]
    program = quiet("sh", "-c", 'command -v "$0"', commands[0][0]).strip()
    walls, each = [], []
    null = os.open(os.devnull, os.O_RDWR)
    streams = [(os.POSIX_SPAWN_DUP2, null, number) for number in (0, 1, 2)]
    for number in range(1 + max(3, options.rounds // 2)):
        began = time.perf_counter()
        started = {}
        for words in commands:
            now = time.perf_counter()
            started[os.posix_spawn(program, words, os.environ, file_actions=streams)] = now
        times = []
        while started:
            process, status = os.wait()
            if status:
                raise SystemExit(f"{what}: one of {CROWD} at once ended with wait status {status}")
            times.append(time.perf_counter() - started.pop(process))
        if number:
            walls.append((time.perf_counter() - began) / CROWD)
            each += times
    row, = rows({f"{what}, {CROWD} at once": walls}, f"{what}, {CROWD} at once")
    return [{**row, "each, median ms": 1000 * percentile(each, 50), "each, p99 ms": 1000 * percentile(each, 99)}]


def copied(plain, work, _notes, _after):
    farm = work / "farm"
    return "cp -al", lambda: quiet("cp", "-al", plain, farm), lambda: remove(farm)


def installed(plain, work, notes, after):
    """The packages of the environment alone, by hardlinks from uv's cache, which is warm."""
    if not have("uv"):
        return notes.append("uv is not installed")
    site = next(plain.glob("opt/env/lib/python*/site-packages"))
    pins = work / "pins.txt"
    pins.write_text("\n".join(sorted(f"{name}=={version}" for name, version in distributions(site))) + "\n")
    venv = work / "venv"
    # A cache that is warm already may be named: filling one downloads gigabytes.
    cache = os.environ.get("UV_CACHE_DIR") or str(work / "uv")
    environment = dict(os.environ, UV_CACHE_DIR=cache, UV_LINK_MODE="hardlink", VIRTUAL_ENV=str(venv))
    if cache == str(work / "uv"):
        after.callback(remove, cache)
    after.callback(remove, venv)

    def install(*more):
        quiet("uv", "venv", "--quiet", "--python", site.parent.name.removeprefix("python"), venv, env=environment)
        quiet("uv", "pip", "install", "--quiet", "--no-deps", "-r", pins, *more, env=environment)

    install()
    remove(venv)
    notes.append(f"{quiet('uv', '--version').strip()}: {len(pins.read_text().splitlines())} packages, no base, no source")
    return "uv venv + install, warm cache", lambda: install("--offline"), lambda: remove(venv)


def container(plain, work, notes, after):
    if not have("buildah"):
        return notes.append("buildah is not installed")
    place = work / "buildah"
    buildah = ["buildah", "--root", place / "root", "--runroot", place / "run", "--storage-driver", "overlay"]
    after.callback(remove, place)
    after.callback(subprocess.run, ["umount", place / "root/overlay"], capture_output=True)
    after.callback(subprocess.run, [*buildah, "umount", "--all"], capture_output=True)
    made = quiet(*buildah, "from", "scratch").strip()
    upper = Path(quiet(*buildah, "mount", made).strip()).parent / "diff"
    quiet(*buildah, "umount", made)
    # Linked, not copied: the image is made from it, and is a copy.
    quiet("cp", "-al", f"{plain}/.", upper)
    quiet(*buildah, "commit", "--quiet", "--disable-compression", made, "peers")
    quiet(*buildah, "rm", made)
    names = []

    def start():
        names.append(quiet(*buildah, "from", "--pull-never", "localhost/peers").strip())
        quiet(*buildah, "mount", names[-1])

    def end():
        quiet(*buildah, "umount", names[-1])
        quiet(*buildah, "rm", names.pop())

    notes.append(quiet("buildah", "--version").strip())
    return "buildah from + mount", start, end


def distributions(site):
    """What a package index has of the environment."""
    for info in site.glob("*.dist-info"):
        installer = info / "INSTALLER"
        if installer.exists() and installer.read_text().strip() == "infradev" and (info / "WHEEL").exists():
            lines = (info / "METADATA").read_text(errors="replace").splitlines()
            fields = dict(line.split(": ", 1) for line in lines if line.startswith(("Name: ", "Version: ")))
            yield fields["Name"], fields["Version"]
