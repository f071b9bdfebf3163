"""How long until the files of a directory are in the store?"""

import os
import subprocess
import time
from pathlib import Path

from measure import have, in_turn, quiet, remove, rows


def forget(path):
    """Removes, and waits: ext4 is slow to give inodes away again that were deleted in the last five seconds."""
    remove(path)
    subprocess.run(["sync", "-f", path.parent], check=False)
    time.sleep(6)


def run(options):
    source = options.arguments[0] if options.arguments else "/usr/lib"
    work, infradev, notes = Path(options.work), os.path.abspath(options.infradev), []
    remove(work)
    work.mkdir(parents=True)
    try:
        tree = work / "tree"
        quiet("cp", "-a", source, tree)
        subprocess.run(["find", tree, "-not", "-type", "f", "-not", "-type", "d", "-not", "-type", "l", "-delete"], check=False)
        store = work / "store"

        def ours():
            quiet(infradev, "--store", store, "layer", "import", tree)

        def copy():
            quiet("cp", "-a", tree, work / "copy")
            quiet("sync", "-f", work / "copy")

        candidates = [
            ("infradev layer import, new", ours, lambda: forget(store)),
            ("cp -a + sync -f", copy, lambda: forget(work / "copy")),
        ]
        if have("ostree"):
            repository = work / "ostree"

            def commit():
                quiet("ostree", "init", "--repo", repository, "--mode", "bare")
                quiet("ostree", "commit", "--repo", repository, "--branch", "b", f"--tree=dir={tree}")

            candidates.append(("ostree commit, new", commit, lambda: forget(repository)))
        else:
            notes.append("ostree is not installed")
        rounds = min(options.rounds, 5)
        found = rows(in_turn(candidates, rounds), "infradev layer import, new")
        ours()
        again = [("infradev layer import, known", ours, None)]
        if have("ostree"):
            commit()
            again.append(("ostree commit, known", lambda: quiet(
                "ostree", "commit", "--repo", repository, "--branch", "b", f"--tree=dir={tree}"), None))
        base = found[0]["median ms"]
        for row in rows(in_turn(again, rounds), "infradev layer import, known"):
            row["x infradev"] = row["median ms"] / base
            found.append(row)
        count = sum(len(files) for _, _, files in os.walk(tree))
        size = int(quiet("du", "-sb", tree).split()[0])
        notes.append(f"{count} files, {size / 1e9:.2f} GB of {source}; ratios are to the new import")
    finally:
        remove(work)
    return found, notes
