# canary: infradev-grading 6b0f4f5e-2c1b-4f6e-9a55-0c3d7d1a8e11
"""Out-of-process judge: ragged micro-batching must cost tokens, not rows x longest row.

The submission runs only in the child (subject.py). This process makes the
specification from INFRADEV_SEED, computes every expected row itself, reads the
child's memory from /proc, and decides.
"""
import array
import hashlib
import json
import os
import random
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
MIB = 1024 * 1024
ALLOWED_EXTRA = 256 * MIB
START_TIMEOUT = 200.0
PHASE_TIMEOUT = 60.0


def finish(code, reason, measured=None):
    print(json.dumps({"pass": code == 0, "reason": reason, "measured": measured or {}}), flush=True)
    sys.exit(code)


def digest(values):
    return hashlib.sha256(values.tobytes()).hexdigest()


def expected_row(row, length, salt):
    first = (row * 1000003 + salt) % 49999
    tokens = array.array("q", ((first + pos * 7919) % 50021 for pos in range(length)))
    positions = array.array("q", range(length))
    mask = array.array("q", (1 if (pos + row) % 3 else 0 for pos in range(length)))
    scores = array.array("d", (token * 0.5 + 1.0 for token in tokens))
    return {
        "input_ids": digest(tokens),
        "position_ids": digest(positions),
        "loss_mask": digest(mask),
        "scores": digest(scores),
    }


def make_spec(rng, rows, longest):
    lengths = [rng.randrange(8, 64) for _ in range(rows)]
    lengths[rng.randrange(rows)] = longest
    return {
        "lengths": lengths,
        "salt": rng.randrange(1, 49999),
        "max_token_len": longest + rng.randrange(100, 1000),
        "names": ["row-%d-%d" % (i, rng.randrange(10**6)) for i in range(rows)],
        "note": "note-%d" % rng.randrange(10**6),
    }


def status_bytes(pid, *fields):
    found = {}
    with open("/proc/%d/status" % pid) as handle:
        for line in handle:
            name, _, rest = line.partition(":")
            if name in fields:
                found[name] = int(rest.split()[0]) * 1024
    return [found.get(field) for field in fields]


class Sampler(threading.Thread):
    """Peak of anonymous plus shared memory of one process, from outside."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.peak, self.stop = pid, 0, threading.Event()

    def run(self):
        while not self.stop.is_set():
            try:
                anon, shmem = status_bytes(self.pid, "RssAnon", "RssShmem")
                self.peak = max(self.peak, (anon or 0) + (shmem or 0))
            except OSError:
                return
            time.sleep(0.002)


class Child:
    def __init__(self):
        python = "/opt/env/bin/python"
        if not os.access(python, os.X_OK):
            python = os.environ.get("INFRADEV_PYTHON", sys.executable)
        self.proc = subprocess.Popen(
            [python, os.path.join(HERE, "subject.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            cwd=os.environ.get("INFRADEV_WORKSPACE", "/workspace/verl"),
        )

    def ask(self, message, timeout):
        timer = threading.Timer(timeout, self.proc.kill)
        timer.start()
        try:
            if message is not None:
                self.proc.stdin.write(json.dumps(message) + "\n")
                self.proc.stdin.flush()
            line = self.proc.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if not line:
            self.proc.kill()
            finish(1, "the submission ended without an answer (exit status %s)" % self.proc.wait())
        try:
            answer = dict(json.loads(line))
        except (TypeError, ValueError):
            self.proc.kill()
            finish(1, "the submission's process answered something that is not the report: %.80r" % line)
        if "error" in answer:
            self.proc.kill()
            finish(1, "the submission raised %s" % answer["error"])
        return answer


def check(spec, answer, measured):
    rows = len(spec["lengths"])
    want = [expected_row(i, n, spec["salt"]) for i, n in enumerate(spec["lengths"])]
    seen = [i for part in answer["indices"] for i in part]
    if sorted(seen) != list(range(rows)):
        finish(1, "the micro-batches name %d rows, not each of the %d rows once" % (len(seen), rows), measured)
    if len(answer["indices"]) != len(answer["micro_batches"]):
        finish(1, "%d index lists for %d micro-batches" % (len(answer["indices"]), len(answer["micro_batches"])), measured)
    for number, (part, got) in enumerate(zip(answer["indices"], answer["micro_batches"])):
        if got["size"] != len(part):
            finish(1, "micro-batch %d has batch size %s for %d rows" % (number, got["size"], len(part)), measured)
        if got["note"] != spec["note"]:
            finish(1, "micro-batch %d lost the batch-wide value: %r" % (number, got["note"]), measured)
        if got["names"] != [spec["names"][i] for i in part]:
            finish(1, "the per-row list of micro-batch %d does not follow its rows" % number, measured)
        for key in ("input_ids", "position_ids", "loss_mask"):
            if got[key] != [want[i][key] for i in part]:
                finish(1, "%s of micro-batch %d is not the rows of its index list" % (key, number), measured)
    if answer["restored"] != [row["scores"] for row in want]:
        wrong = sum(a != b["scores"] for a, b in zip(answer["restored"], want)) + abs(len(answer["restored"]) - rows)
        finish(1, "%d of %d output rows are not in the order of the batch" % (wrong, rows), measured)


def main():
    try:
        rng = random.Random(int(os.environ["INFRADEV_SEED"]))
        small = make_spec(rng, 24, 96)
        skewed = make_spec(rng, rng.randrange(224, 257), rng.randrange(360_000, 400_000))
        child = Child()
    except (KeyError, ValueError, OSError) as error:
        finish(2, "the judge could not start: %r" % error)
    try:
        judge(child, small, skewed)
    except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        finish(1, "the submission's process vanished or its report is malformed: %r" % error)
    finally:
        child.proc.kill()


def judge(child, small, skewed):
    child.ask(None, START_TIMEOUT)
    check(small, child.ask({"run": small}, PHASE_TIMEOUT), {})

    pid = child.proc.pid
    try:
        with open("/proc/%d/clear_refs" % pid, "w") as handle:
            handle.write("5")
        reset = True
    except OSError:
        reset = False
    anon, shmem, rss, before = status_bytes(pid, "RssAnon", "RssShmem", "VmRSS", "VmHWM")
    sampler = Sampler(pid)
    sampler.start()
    answer = child.ask({"run": skewed}, PHASE_TIMEOUT)
    sampler.stop.set()
    sampler.join()
    (after,) = status_bytes(pid, "VmHWM")
    child.proc.stdin.close()
    child.proc.kill()
    child.proc.wait()

    extra = sampler.peak - anon - shmem
    if reset:
        extra = max(extra, after - rss)
    tokens = sum(skewed["lengths"])
    rows, longest = len(skewed["lengths"]), max(skewed["lengths"])
    measured = {
        "extra_bytes": extra, "allowed_extra_bytes": ALLOWED_EXTRA, "rows": rows, "tokens": tokens,
        "longest": longest, "dense_bytes": rows * longest * 8, "micro_batches": len(answer["indices"]),
    }
    check(skewed, answer, measured)
    if extra > ALLOWED_EXTRA:
        finish(1, "splitting %d rows with %d tokens in all took %d MiB more memory, allowed %d MiB "
                  "(one dense int64 copy is %d MiB)" % (rows, tokens, extra // MIB, ALLOWED_EXTRA // MIB,
                                                       measured["dense_bytes"] // MIB), measured)
    finish(0, "%d rows with %d tokens were split and restored exactly with %d MiB more memory, allowed %d MiB"
           % (rows, tokens, extra // MIB, ALLOWED_EXTRA // MIB), measured)


main()
