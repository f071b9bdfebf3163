"""Quickstart check: one torch-free module of the installed release against numpy."""
import importlib.metadata
import importlib.util
import os
import sys

import numpy as np

ROOT = os.environ.get("INFRADEV_QUICKSTART_ROOT", "/workspace/quickstart-vllm")


def load(path):
    spec = importlib.util.spec_from_file_location("checked", os.path.join(ROOT, path))
    module = importlib.util.module_from_spec(spec)
    sys.modules["checked"] = module
    spec.loader.exec_module(module)
    return module


def scalar_types():
    """Ranges of the small number formats."""
    types = load("vllm/scalar_type.py").scalar_types
    pairs = {
        "float16": (types.float16.max(), float(np.finfo(np.float16).max)),
        "int8": (types.int8.min(), int(np.iinfo(np.int8).min)),
        "uint8b128": (types.uint8b128.min(), int(np.iinfo(np.uint8).min) - 128),
        "float8_e4m3fn": (types.float8_e4m3fn.max(), float(np.ldexp(1 + 6 / 8, 8))),
    }
    for name, (got, want) in pairs.items():
        if got != want:
            sys.exit("scalar type %s: %r, numpy says %r" % (name, got, want))
    return "%d scalar types have the ranges that numpy computes" % len(pairs)


def evictor():
    """Order in which cached blocks are given up: oldest first, among equals the longest prefix first."""
    lru = load("vllm/core/evictor_v2.py").LRUEvictor()
    rng = np.random.default_rng(20241014)
    age = np.sort(rng.integers(0, 12, size=60))
    depth = rng.permutation(60)
    for block in range(60):
        lru.add(block, 1000 + block, int(depth[block]), float(age[block]))
    got = [lru.evict()[0] for _ in range(60)]
    want = np.lexsort((-depth, age)).tolist()
    if got != want:
        sys.exit("LRUEvictor gives up blocks in another order than numpy's lexsort")
    return "60 cached blocks are given up in the order that numpy computes"


CHECKS = {"0.6.3": evictor, "0.7.3": scalar_types}
release = importlib.metadata.version("vllm")
if release not in CHECKS:
    sys.exit("no check for vllm %s" % release)
print("vllm %s: %s" % (release, CHECKS[release]()))
if "torch" in sys.modules:
    sys.exit("the check imported torch")
