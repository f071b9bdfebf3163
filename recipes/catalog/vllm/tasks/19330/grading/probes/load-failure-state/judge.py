# canary: infradev-grading 6b0f4f5e-2c1b-4f6e-9a55-0c3d7d1a8e11
"""Out-of-process judge: the life of a request after some of its external KV blocks failed to load.

The scheduler of the submission lives in the child (subject.py) and is driven one command at
a time; this process draws the scenario from INFRADEV_SEED and knows what must follow.
"""
import json
import os
import random
import subprocess
import sys
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
BLOCK = 16
NUM_BLOCKS = 600
BUDGET = 8192
START_TIMEOUT = 200.0
STEP_TIMEOUT = 60.0


class Rejected(Exception):
    pass


def finish(code, reason, measured=None):
    print(json.dumps({"pass": code == 0, "reason": reason, "measured": measured or {}}), flush=True)
    sys.exit(code)


class Child:
    def __init__(self):
        python = "/opt/env/bin/python"
        if not os.access(python, os.X_OK):
            python = os.environ.get("INFRADEV_PYTHON", sys.executable)
        self.proc = subprocess.Popen(
            [python, os.path.join(HERE, "subject.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            cwd=os.environ.get("INFRADEV_WORKSPACE", "/workspace/vllm"))

    def read(self, timeout):
        timer = threading.Timer(timeout, self.proc.kill)
        timer.start()
        try:
            line = self.proc.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            self.proc.kill()
            raise Rejected("the submission ended without an answer (exit status %s)" % self.proc.wait())
        answer = dict(json.loads(line))
        if "error" in answer:
            raise Rejected("the submission raised %s" % answer["error"])
        return answer

    def __call__(self, command, **arguments):
        self.proc.stdin.write(json.dumps([command, arguments]) + "\n")
        self.proc.stdin.flush()
        return self.read(STEP_TIMEOUT)


class Story:
    """One scenario on a fresh scheduler; `expect` is the only way to a rejection."""

    def __init__(self, child, rng, name, steps):
        self.child, self.rng, self.name, self.steps = child, rng, name, steps
        child("new", block_size=BLOCK, num_blocks=NUM_BLOCKS, budget=BUDGET)

    def expect(self, what, got, want):
        self.steps.append(what)
        if got != want:
            raise Rejected("%s: %s is %s, must be %s" % (self.name, what, json.dumps(got), json.dumps(want)))

    def prompt(self, tokens):
        return [self.rng.randrange(10, 50000) for _ in range(tokens)]

    def scheduled(self, what, scheduled, computed):
        got = self.child("schedule")
        self.expect("tokens scheduled " + what, got["scheduled"], scheduled)
        self.expect("tokens counted as computed " + what, got["computed"], computed)

    def drain(self, left):
        """Decode one token a step until the requests in `left` (id -> tokens to come) end, then look for leaks."""
        left = dict(left)
        while left:
            got = self.child("schedule")
            self.expect("decode step", got["scheduled"], {name: 1 for name in left})
            self.expect("decode output", self.child("update", invalid=[], recved=[])["emitted"], {name: 1 for name in left})
            left = {name: n - 1 for name, n in left.items() if n > 1}
        self.leaks()

    def leaks(self):
        state = self.child("state")
        self.expect("the list of live requests at the end", state["requests"], [])
        self.expect("the number of blocks still referenced at the end", state["referenced"], 0)
        self.expect("the number of free blocks at the end", state["free"], NUM_BLOCKS - 1)


def shape(rng):
    blocks = rng.randrange(30, 60)
    tail = rng.randrange(1, BLOCK)
    return blocks, blocks * BLOCK + tail


def async_partial(story):
    rng, child = story.rng, story.child
    blocks, tokens = shape(rng)
    first = rng.randrange(3, blocks - 4)
    later = rng.randrange(first + 1, blocks)
    child("add", request_id="a", prompt=story.prompt(tokens), max_tokens=3, offers=[[blocks * BLOCK, True]])
    story.scheduled("while the load runs", {}, {})
    ids = child("blocks", request_id="a")["blocks"]
    child("update", invalid=[ids[later]], recved=[])
    story.scheduled("after the first report", {}, {})
    child("update", invalid=[ids[first]], recved=["a"])
    story.scheduled("after %d of %d loaded blocks held" % (first, blocks),
                    {"a": tokens - first * BLOCK}, {"a": first * BLOCK})
    story.expect("output after recomputation", child("update", invalid=[], recved=[])["emitted"], {"a": 1})
    story.drain({"a": 2})


def async_total_twice(story):
    rng, child = story.rng, story.child
    blocks, tokens = shape(rng)
    second = rng.randrange(2, blocks - 2)
    child("add", request_id="b", prompt=story.prompt(tokens), max_tokens=2,
          offers=[[blocks * BLOCK, True], [blocks * BLOCK, True]])
    story.scheduled("while the first load runs", {}, {})
    ids = child("blocks", request_id="b")["blocks"]
    child("update", invalid=[ids[0], ids[-2]], recved=["b"])
    story.scheduled("while the retried load runs", {}, {})
    story.expect("the external cache lookups", child("state")["lookups"], ["b", "b"])
    ids = child("blocks", request_id="b")["blocks"]
    child("update", invalid=[ids[second]], recved=["b"])
    story.scheduled("after the second failure", {"b": tokens - second * BLOCK}, {"b": second * BLOCK})
    story.expect("output after recomputation", child("update", invalid=[], recved=[])["emitted"], {"b": 1})
    story.drain({"b": 1})


def async_neighbour_and_abort(story):
    rng, child = story.rng, story.child
    plans = {name: shape(rng) for name in ("c", "d", "e")}
    for name, (blocks, tokens) in plans.items():
        child("add", request_id=name, prompt=story.prompt(tokens), max_tokens=2, offers=[[blocks * BLOCK, True]])
    story.scheduled("while three loads run", {}, {})
    bad = {}
    for name in ("d", "e"):
        ids = child("blocks", request_id=name)["blocks"]
        bad[name] = rng.randrange(2, len(ids) - 3)
        child("update", invalid=[ids[bad[name]]], recved=[])
    child("abort", request_id="e")
    story.scheduled("before any load ended", {}, {})
    child("update", invalid=[], recved=["c", "d"])
    (c_blocks, c_tokens), (_, d_tokens) = plans["c"], plans["d"]
    story.scheduled("with one sound and one failed load",
                    {"c": c_tokens - c_blocks * BLOCK, "d": d_tokens - bad["d"] * BLOCK},
                    {"c": c_blocks * BLOCK, "d": bad["d"] * BLOCK})
    story.expect("output of both", child("update", invalid=[], recved=[])["emitted"], {"c": 1, "d": 1})
    story.drain({"c": 1, "d": 1})


def sync_failure(story):
    rng, child = story.rng, story.child
    plans = {name: shape(rng) for name in ("f", "g")}
    for name, (blocks, tokens) in plans.items():
        child("add", request_id=name, prompt=story.prompt(tokens), max_tokens=3, offers=[[blocks * BLOCK, False]])
    story.scheduled("with two loads inside the step",
                    {name: tokens - blocks * BLOCK for name, (blocks, tokens) in plans.items()},
                    {name: blocks * BLOCK for name, (blocks, tokens) in plans.items()})
    ids = child("blocks", request_id="g")["blocks"]
    bad = rng.randrange(0, plans["g"][0] - 1)
    story.expect("output of the step with the failure",
                 child("update", invalid=[ids[bad]], recved=[])["emitted"], {"f": 1})
    story.scheduled("after the failure", {"f": 1, "g": plans["g"][1] - bad * BLOCK},
                    {"f": plans["f"][1], "g": bad * BLOCK})
    story.expect("output after recomputation", child("update", invalid=[], recved=[])["emitted"], {"f": 1, "g": 1})
    story.drain({"f": 1, "g": 2})


def main():
    try:
        seed = int(os.environ["INFRADEV_SEED"])
        child = Child()
    except (KeyError, ValueError, OSError) as error:
        finish(2, "the judge could not start: %r" % error)
    steps, names = [], []
    try:
        child.read(START_TIMEOUT)
        for index, scenario in enumerate((async_partial, async_total_twice, async_neighbour_and_abort, sync_failure)):
            names.append(scenario.__name__)
            scenario(Story(child, random.Random(seed * 10 + index), scenario.__name__, steps))
    except Rejected as error:
        finish(1, str(error), {"scenarios": names, "checks": len(steps)})
    except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        finish(1, "the submission's process vanished or answered something malformed: %r" % error,
               {"scenarios": names, "checks": len(steps)})
    finally:
        child.proc.kill()
        child.proc.wait()
    finish(0, "%d scenarios with %d checks: only the lost tokens were recomputed and every block came back"
           % (len(names), len(steps)), {"scenarios": names, "checks": len(steps)})


main()
