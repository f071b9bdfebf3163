"""How much disk do the environments of some lock files take?

Every peer gets all of them, the blocks of all its files are counted, and it is deleted before the next begins. What
shares nothing is added up one environment after the other, so that the disk need not hold it all at once.
"""

import csv
import os
import re
import subprocess
from pathlib import Path

from measure import disk, have, quiet, remove

PYTHON = "/usr/bin/python3.11"
# One commit of one file stands for the source tree: the question is about packages.
MOMENT = "2026-01-01T00:00:00Z"

# What a maintainer of container images would put in a layer of its own.
HEAVY = re.compile(r"(torch|triton|nvidia-[a-z0-9-]+-cu\d+)==")

# Two wheels with different bytes for one path are an error unless the recipe says whose it is; where containers and
# venvs have what was written last, the bench takes either.
CONFLICT = re.compile(r"error: locks/(\S+)@\S+: (\S+) and \S+ both hold /opt/env/([^\s,]+), with different content")

PROJECT = """schema = 1
[project]
name = "locks"
summary = "Environments of lock files, to measure what they take"
distribution = "locks"
[source]
git = "{repository}"
[variant.cuda]
base = {{ host = true }}
python = {{ from = "base", version = "3.11" }}
"""
TASK = """schema = 1
title = "the packages of {name}"
[source]
commit = "{commit}"
date = "{moment}"
version = "1"
[python]
requirements = {{ pins = [{pins}] }}
exclude-newer = "{moment}"
align = false
"""


def pins_of(lock):
    lines = (line.split("#")[0].strip() for line in lock.read_text().splitlines())
    return [line for line in lines if line]


def write_catalog(locks, place):
    """Writes a catalog with a task for each lock; returns the directory."""
    repository, project = place / "repository", place / "catalog" / "locks"
    repository.mkdir(parents=True)
    (repository / "README").write_text("nothing\n")
    identity = {"GIT_AUTHOR_DATE": MOMENT, "GIT_COMMITTER_DATE": MOMENT, "HOME": str(place), "PATH": os.environ["PATH"]}
    for words in (["init", "--quiet"], ["add", "."],
                  ["-c", "user.name=n", "-c", "user.email=n@n", "commit", "--quiet", "-m", "base"]):
        quiet("git", "-C", repository, *words, env=identity)
    commit = quiet("git", "-C", repository, "rev-parse", "HEAD").strip()
    for lock in locks:
        task = project / "tasks" / lock.stem
        task.mkdir(parents=True)
        pins = ", ".join(f'"{pin}"' for pin in pins_of(lock))
        (task / "task.toml").write_text(TASK.format(name=lock.stem, commit=commit, moment=MOMENT, pins=pins))
    (project / "project.toml").write_text(PROJECT.format(repository=repository))
    return place / "catalog"


def run(options):
    locks = [lock for argument in options.arguments for lock in files_of(Path(argument))]
    work, peers, notes, found = Path(options.work), options.peers.split(","), [], []
    remove(work)
    work.mkdir(parents=True)
    try:
        if "infradev" in peers:
            found += infradev(locks, work, os.path.abspath(options.infradev))
        if not have(options.uv):
            notes.append("uv is not installed, and the other peers are filled from its venvs")
        elif set(peers) - {"infradev"}:
            found += venvs(locks, work, options.uv, peers, notes)
    finally:
        remove(work)
    for row in found:
        row["GB"] = row["bytes"] / 1e9
        row["x first"] = row["bytes"] / found[0]["bytes"]
    pins = [pin for lock in locks for pin in pins_of(lock)]
    notes.append(f"{len(locks)} locks, {len(pins)} pins, {len(set(pins))} distinct: {', '.join(lock.stem for lock in locks)}")
    return found, notes


def files_of(argument):
    return sorted(argument.glob("*.txt")) if argument.is_dir() else [argument]


def infradev(locks, work, program):
    """The whole store: objects, layers, images, index, and the caches that locking and building left."""
    store, catalog = work / "store", write_catalog(locks, work / "sources")

    def ours(*words):
        quiet(program, "--store", store, "--catalog", catalog, *words)

    ours("lock", "all")
    while conflicts := set(CONFLICT.findall(failure := attempt(program, "--store", store, "--catalog", catalog, "build", "all"))):
        for task, winner, path in conflicts:
            prefer(catalog / "locks" / "tasks" / task / "task.toml", path, winner)
    if failure:
        raise SystemExit(failure)
    yield {"what": "infradev", "bytes": disk(store)}
    ours("gc", "--compress")
    yield {"what": "infradev, after gc --compress", "bytes": disk(store)}
    remove(store)


def attempt(*command):
    """Runs a command; returns what it wrote if it failed."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    return done.stderr if done.returncode else ""


def prefer(document, path, winner):
    """Says in a task which of two wheels has `path`; `[python]` is the last table of the document."""
    lines = document.read_text().splitlines()
    if not lines[-1].startswith("prefer = { "):
        lines.append("prefer = { }")
    line = f'"{path}" = "{winner}"'
    if line in lines[-1]:
        raise SystemExit(f"{document}: {line} was no help")
    lines[-1] = lines[-1].replace("{ ", "{ " + line + (", " if '"' in lines[-1] else " "), 1)
    document.write_text("\n".join(lines) + "\n")


def venvs(locks, work, uv, peers, notes):
    """uv's cache with a venv for each lock, and what others make of these venvs."""
    place, cache = work / "uv", work / "uv" / "cache"
    settings = {**os.environ, "UV_CACHE_DIR": str(cache), "UV_LINK_MODE": "hardlink"}
    for lock in locks:
        venv = place / lock.stem
        quiet(uv, "venv", "--python", PYTHON, venv, env=settings)
        quiet(uv, "pip", "install", "--no-deps", "--compile-bytecode", "--python", venv / "bin/python", "-r", lock, env=settings)
    yield {"what": "uv, hardlinked cache and venvs", "bytes": disk(place)}
    compiled = sum(disk(found) for found in place.glob("*/lib/**/__pycache__"))
    yield {"what": "uv, without bytecode", "bytes": disk(place) - compiled}
    yield {"what": "plain venvs, nothing shared", "bytes": sum(disk(place / lock.stem) for lock in locks)}
    if "buildah" in peers and have("buildah"):
        yield from layers(locks, place, work / "buildah", notes)
    elif "buildah" in peers:
        notes.append("buildah is not installed")
    if "ostree" in peers and have("ostree"):
        # Each venv goes when it is committed: then the disk never holds all of them twice.
        remove(cache)
        repository = work / "ostree"
        quiet("ostree", "init", "--repo", repository, "--mode", "bare")
        for lock in locks:
            quiet("ostree", "commit", "--repo", repository, "--branch", lock.stem, f"--tree=dir={place / lock.stem}")
            remove(place / lock.stem)
        yield {"what": "ostree, a bare repository", "bytes": disk(repository)}
    elif "ostree" in peers:
        notes.append("ostree is not installed")


def layers(locks, place, root, notes):
    """Images of containers: one layer for each lock, or one for torch and what it brings and one for the rest.

    Layers share nothing, and a layer on disk is the files of the container that it is committed from: each venv
    is added to a container, measured there, and deleted.
    """
    storage = ["--root", root / "storage", "--runroot", root / "run", "--storage-driver", "overlay"]

    def buildah(*words):
        return quiet("buildah", *storage, *words, env={**os.environ, "TMPDIR": str(root)}).strip()

    root.mkdir()
    keyed, rest, heavy = 0, 0, {}
    for lock in locks:
        container = buildah("from", "scratch")
        empty = disk(root)
        buildah("add", container, place / lock.stem, "/opt/env")
        whole = disk(root) - empty
        packages = Path(buildah("mount", container)) / "opt/env/lib/python3.11/site-packages"
        pins = frozenset(pin for pin in pins_of(lock) if HEAVY.match(pin))
        part = blocks_of(packages, {normal(pin.split("==")[0]) for pin in pins})
        buildah("umount", container)
        buildah("rm", container)
        heavy.setdefault(pins, part)
        keyed, rest = keyed + whole, rest + whole - part
    remove(root)
    notes.append(f"buildah: {len(heavy)} layers of torch for {len(locks)} locks")
    yield {"what": "buildah, a layer per lock", "bytes": keyed}
    yield {"what": "buildah, torch in layers of its own", "bytes": rest + sum(heavy.values())}


def blocks_of(packages, names):
    """Bytes on disk of the files of some distributions, by their RECORDs."""
    total = 0
    for record in packages.glob("*.dist-info/RECORD"):
        if normal(record.parent.name.split("-")[0]) in names:
            with open(record, newline="") as lines:
                files = {os.path.normpath(packages / row[0]) for row in csv.reader(lines) if row}
            files |= {os.path.join(cached, name) for cached in {os.path.join(os.path.dirname(file), "__pycache__") for file in files}
                      if os.path.isdir(cached) for name in os.listdir(cached)}
            total += sum(512 * os.lstat(file).st_blocks for file in files if os.path.lexists(file))
    return total


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()
