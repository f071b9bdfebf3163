"""How long until a command runs in the environment of a task?"""

import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from measure import have, in_turn, quiet, remove, rows, timed


def run(options):
    task, = options.arguments
    work, infradev, notes = Path(options.work), os.path.abspath(options.infradev), []
    remove(work)
    work.mkdir(parents=True)
    quiet(infradev, "env", "mount", task, "--name", "peers-tree")
    tree = Path(quiet(infradev, "--json", "env", "mount", "peers-tree") and merged(infradev, "peers-tree"))
    try:
        candidates = [
            ("infradev env mount", lambda: quiet(infradev, "env", "mount", task, "--name", "peers"),
             lambda: quiet(infradev, "env", "rm", "peers")),
            ("infradev env exec -- true", lambda: quiet(infradev, "env", "exec", task, "--", "true"), None),
        ]
        if have("bwrap"):
            candidates.append(("bwrap --unshare-all (the mounted tree)", lambda: quiet(
                "bwrap", "--unshare-all", "--ro-bind", tree, "/", "--dev", "/dev", "--proc", "/proc",
                "--tmpfs", "/tmp", "true"), None))
            if "--overlay-src" in quiet("bwrap", "--help"):
                upper, scratch = work / "upper", work / "scratch"
                upper.mkdir(), scratch.mkdir()
                candidates.append(("bwrap --overlay", lambda: quiet(
                    "bwrap", "--unshare-all", "--overlay-src", tree, "--overlay", upper, scratch, "/",
                    "--dev", "/dev", "--proc", "/proc", "true"), None))
            else:
                notes.append(f"{quiet('bwrap', '--version').strip()} has no --overlay")
        else:
            notes.append("bwrap is not installed")
        found = rows(in_turn(candidates, options.rounds), "infradev env mount")
        found += slow(options, tree, work, notes, found[0]["median ms"])
        found += crowd(infradev, task, found[0]["median ms"])
    finally:
        subprocess.run([infradev, "env", "rm", "peers-tree"], capture_output=True)
        remove(work)
    return found, notes


def merged(infradev, name):
    """Where an environment is mounted."""
    return quiet(infradev, "env", "mount", name).strip().splitlines()[-1]


def slow(options, tree, work, notes, ours):
    """Peers that take seconds: three rounds."""
    candidates = []
    farm = work / "farm"
    plain = work / "plain"
    quiet("cp", "-a", tree, plain)
    candidates.append(("cp -al (same tree, plain)", lambda: quiet("cp", "-al", plain, farm), lambda: remove(farm)))
    uv = [program for program in ("uv",) if have(program)]
    if uv:
        site = next(plain.glob("opt/env/lib/python*/site-packages"))
        pins = sorted(f"{name}=={version}" for name, version in distributions(site))
        (work / "pins.txt").write_text("\n".join(pins) + "\n")
        python = site.parent.name.removeprefix("python")
        environment = dict(os.environ, UV_CACHE_DIR=str(work / "uv"))

        def venv():
            quiet("uv", "venv", "--quiet", "--python", python, work / "venv", env=environment)
            quiet("uv", "pip", "install", "--quiet", "--no-deps", "--python", work / "venv/bin/python",
                  "-r", work / "pins.txt", env=environment)

        try:
            venv()
            remove(work / "venv")
            candidates.append(("uv venv + install, warm cache", venv, lambda: remove(work / "venv")))
        except SystemExit as error:
            notes.append(f"uv could not install the same packages: {str(error).splitlines()[-1]}")
    else:
        notes.append("uv is not installed")
    if have("buildah"):
        store = ["--root", str(work / "buildah"), "--runroot", str(work / "buildah-run"), "--storage-driver", "overlay"]
        made = quiet("buildah", *store, "from", "scratch").strip()
        root = quiet("buildah", *store, "mount", made).strip()
        quiet("cp", "-a", f"{plain}/.", root)
        quiet("buildah", *store, "umount", made)
        quiet("buildah", *store, "commit", "--quiet", "--disable-compression", made, "peers")
        names = []

        def start():
            names.append(quiet("buildah", *store, "from", "peers").strip())
            quiet("buildah", *store, "mount", names[-1])

        def end():
            quiet("buildah", *store, "umount", names[-1])
            quiet("buildah", *store, "rm", names.pop())

        candidates.append(("buildah from + mount", start, end))
    else:
        notes.append("buildah is not installed")
    found = rows(in_turn(candidates, 3), candidates[0][0])
    for row in found:
        row["x infradev"] = row["median ms"] / ours
    return found


def distributions(site):
    for info in site.glob("*.dist-info"):
        record = (info / "INSTALLER")
        if record.exists() and record.read_text().strip() == "infradev" and (info / "WHEEL").exists():
            fields = dict(line.split(": ", 1) for line in (info / "METADATA").read_text(errors="replace").splitlines()
                          if line.startswith(("Name: ", "Version: ")))
            yield fields["Name"], fields["Version"]


def crowd(infradev, task, ours, count=64):
    """64 at once."""
    def one(_):
        return timed(lambda: quiet(infradev, "env", "exec", task, "--", "true"))

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(one, range(count)))
        began = time.perf_counter()
        times = sorted(pool.map(one, range(count)))
        wall = time.perf_counter() - began
    return [{"what": f"infradev env exec, {count} at once: wall per environment", "median ms": 1000 * wall / count,
             "p99 ms": 1000 * times[-1], "x infradev": 1000 * wall / count / ours}]
