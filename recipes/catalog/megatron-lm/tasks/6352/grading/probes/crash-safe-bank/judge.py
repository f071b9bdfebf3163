# canary: infradev-grading 6b0f4f5e-2c1b-4f6e-9a55-0c3d7d1a8e11
"""Out-of-process judge: kill the writer of the rollout bank before each of its file operations.

The bank lives in the children of subject.py; this process makes the groups from INFRADEV_SEED, copies
bank directories, and compares what a fresh reader finds with what had been acknowledged.
"""
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
CRASHED = 77
MOST_POINTS = 300
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
            cwd=os.environ.get("INFRADEV_WORKSPACE", "/workspace/megatron-lm"))

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
        return dict(json.loads(line))

    def start(self):
        answer = self.read(START_TIMEOUT)
        if "error" in answer:
            raise Rejected("the submission raised %s" % answer["error"])

    def run(self, what, may_crash=False, **command):
        """Run one command; (crashed, answers)."""
        self.proc.stdin.write(json.dumps(command) + "\n")
        self.proc.stdin.flush()
        answers = []
        while True:
            answer = self.read(STEP_TIMEOUT)
            if "error" in answer:
                raise Rejected("%s: %s raised %s" % (what, command["action"], answer["error"]))
            if "exit" in answer:
                if answer["exit"] == CRASHED and may_crash:
                    return True, answers
                if answer["exit"] != 0:
                    raise Rejected("%s: %s ended with status %s" % (what, command["action"], answer["exit"]))
                return False, answers
            answers.append(answer)


def make_group(rng, number):
    members = []
    for member in range(rng.randrange(2, 4)):
        turns = [rng.randrange(200, 900) for _ in range(rng.randrange(1, 4))]
        members.append({
            "trajectory": [[rng.randrange(0, 150000) for _ in range(n)] for n in turns],
            "logprobs": [[-rng.randrange(0, 512) / 64.0 for _ in range(n)] for n in turns],
            "generation_mask": [[rng.random() < 0.5 for _ in range(n)] for n in turns],
            "reward": rng.randrange(0, 9) / 8.0, "env_id": "env", "problem_id": "p-%d-%d" % (number, member),
        })
    return members


def read_groups(what, answers, expected, optional=()):
    """The restored groups must be exactly `expected` (uid -> members); those in `optional` may lack."""
    seen = {}
    for answer in answers:
        group = answer["group"]
        if group["uid"] in seen:
            raise Rejected("%s: group %s came back twice" % (what, group["uid"]))
        seen[group["uid"]] = group["rollouts"]
    lost = sorted(set(expected) - set(seen) - set(optional))
    if lost:
        raise Rejected("%s: %d of %d groups are lost (%s)" % (what, len(lost), len(expected), ", ".join(lost[:3])))
    extra = sorted(str(uid) for uid in set(seen) - set(expected))
    if extra:
        raise Rejected("%s: %d groups came back that must not (%s)" % (what, len(extra), ", ".join(extra[:3])))
    for uid, members in seen.items():
        if members != expected[uid]:
            raise Rejected("%s: group %s came back changed" % (what, uid))


def size_of(directory):
    return sum(os.path.getsize(os.path.join(base, name)) for base, _, names in os.walk(directory) for name in names)


def judge(child, rng, scratch, measured):
    child.start()
    groups = [make_group(rng, number) for number in range(9)]
    master = os.path.join(scratch, "master")
    known = {}
    for collection, part in ((0, groups[:4]), (1, groups[4:8])):
        _, answers = child.run("set-up", action="append", dir=master, collection=collection, groups=part)
        for answer, members in zip(answers, part):
            known[answer["uid"]] = members
    if len(known) != 8:
        raise Rejected("set-up: 8 groups got %d distinct uids" % len(known))
    uids = list(known)
    rng.shuffle(uids)
    child.run("set-up", action="consume", dir=master, marks=[[uids[:2], 3], [[uids[2]], 5], [uids[3:5], 7]])
    survivors = {uid: known[uid] for uid in uids[3:]}
    before = size_of(master)

    points = {}
    for action in ("checkpoint", "recover"):
        for crash_at in range(MOST_POINTS):
            work = os.path.join(scratch, "work")
            shutil.copytree(master, work)
            what = "kill before file operation %d of %s(5)" % (crash_at + 1, action)
            crashed, _ = child.run(what, may_crash=True, action=action, dir=work, iteration=5, crash_at=crash_at)
            if not crashed:
                what = "after %s(5)" % action
            _, answers = child.run(what, action="restore", dir=work, iteration=5)
            read_groups(what, answers, survivors)
            if crashed:
                child.run(what, action=action, dir=work, iteration=5)
                _, answers = child.run(what, action="restore", dir=work, iteration=5)
                read_groups(what + " and its repetition", answers, survivors)
            after = size_of(work)
            if after > before * 0.85:
                raise Rejected("%s: the bank is %d bytes, %d before: consumed groups are not reclaimed"
                               % (what, after, before))
            shutil.rmtree(work)
            if not crashed:
                break
        else:
            raise Rejected("%s: more than %d file operations" % (action, MOST_POINTS))
        points[action] = crash_at
    measured.update(points=points, bytes_before=before, bytes_after=after)

    extra = [make_group(rng, number) for number in range(20, 23)]
    for crash_at in range(MOST_POINTS):
        work = os.path.join(scratch, "work")
        shutil.copytree(master, work)
        what = "kill before file operation %d of append()" % (crash_at + 1)
        crashed, answers = child.run(what, may_crash=True, action="append", dir=work, collection=2,
                                     groups=extra[:2] if crash_at % 2 else extra[1:2], crash_at=crash_at)
        appended = extra[:2] if crash_at % 2 else extra[1:2]
        expected = dict(survivors)
        for answer, members in zip(answers, appended):
            expected[answer["uid"]] = members
        _, answers = child.run(what, action="append", dir=work, collection=2, groups=extra[2:])
        expected[answers[0]["uid"]] = extra[2]
        _, answers = child.run(what, action="restore", dir=work, iteration=5)
        # The interrupted group was not acknowledged: whole or absent are both right.
        whole = {a["group"]["uid"]: extra[1] for a in answers if a["group"]["uid"] not in expected} if crashed else {}
        if len(whole) > 1:
            raise Rejected("%s: %d groups came back that nobody appended" % (what, len(whole)))
        read_groups(what, answers, {**expected, **whole})
        shutil.rmtree(work)
        if not crashed and crash_at > 1:
            break
    else:
        raise Rejected("append: more than %d file operations" % MOST_POINTS)
    points["append"] = crash_at


def main():
    try:
        rng = random.Random(int(os.environ["INFRADEV_SEED"]))
        scratch = tempfile.mkdtemp(prefix="bank-")
        child = Child()
    except (KeyError, ValueError, OSError) as error:
        finish(2, "the judge could not start: %r" % error)
    measured = {}
    try:
        judge(child, rng, scratch, measured)
    except Rejected as error:
        finish(1, str(error), measured)
    except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        finish(1, "the submission's process vanished or answered something malformed: %r" % error, measured)
    finally:
        child.proc.kill()
        child.proc.wait()
        shutil.rmtree(scratch, ignore_errors=True)
    points = measured["points"]
    finish(0, "killed before each of %d file operations of checkpoint, %d of recover and %d of append: nothing was "
              "lost, doubled or changed, and consumed groups were reclaimed"
           % (points["checkpoint"], points["recover"], points["append"]), measured)


main()
