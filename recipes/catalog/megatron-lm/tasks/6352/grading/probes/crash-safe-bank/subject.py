# canary: infradev-grading 6b0f4f5e-2c1b-4f6e-9a55-0c3d7d1a8e11
"""The half that imports the submission: forks one child per command, which may die on purpose.

A command that carries `crash_at` ends the child, as a kill would, right before the file operation with
that number (opens for writing, renames, removals, new directories, truncations).
"""
import json
import os
import sys

OUT = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
sys.path.insert(0, os.environ.get("INFRADEV_WORKSPACE", "/workspace/megatron-lm"))
CRASHED = 77
WATCHED = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.link", "os.symlink"}
state = {"left": None}


def say(message):
    OUT.write(json.dumps(message) + "\n")
    OUT.flush()


def watch(event, arguments):
    if state["left"] is None:
        return
    if event == "open":
        mode, flags = arguments[1], arguments[2]
        if isinstance(mode, str):
            writes = any(letter in mode for letter in "wax+")
        else:
            writes = bool(flags & (os.O_WRONLY | os.O_RDWR))
        if not writes:
            return
    elif event not in WATCHED:
        return
    if state["left"] == 0:
        os._exit(CRASHED)
    state["left"] -= 1


def make(spec):
    from megatron.rl.types import RolloutGroup, TokenRollout

    return RolloutGroup(rollouts=[TokenRollout(**member) for member in spec])


def plain(group):
    members = [
        {"trajectory": [list(map(int, turn)) for turn in m.trajectory],
         "logprobs": [list(map(float, turn)) for turn in m.logprobs],
         "generation_mask": [list(map(bool, turn)) for turn in m.generation_mask],
         "reward": m.reward, "env_id": m.env_id, "problem_id": m.problem_id}
        for m in group.rollouts
    ]
    return {"uid": group.uid, "rollouts": members}


def perform(command):
    from megatron.rl.rollout_bank import RolloutBank

    action, directory, crash_at = command["action"], command["dir"], command.get("crash_at")
    if action in ("checkpoint", "recover"):
        state["left"] = crash_at
    bank = RolloutBank(directory)
    if action == "append":
        bank.set_collection(command["collection"])
        for position, spec in enumerate(command["groups"]):
            if position == len(command["groups"]) - 1:
                state["left"] = crash_at
            uid = bank.append(make(spec))
            state["left"], left = None, state["left"]
            say({"uid": uid})
            state["left"] = left
    elif action == "consume":
        for uids, iteration in command["marks"]:
            bank.mark_consumed_many(uids, iteration)
    elif action == "checkpoint":
        bank.checkpoint(command["iteration"])
    elif action == "recover":
        groups = bank.recover(command["iteration"])
        state["left"] = None
        for group in groups:
            say({"group": plain(group)})
    elif action == "restore":
        for group in bank.restore(command["iteration"]):
            say({"group": plain(group)})
    state["left"] = None
    bank.close()


def main():
    import megatron.rl.rollout_bank  # noqa: F401  the slow import happens once, before the forks

    say({"ready": True})
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = 0
            try:
                sys.addaudithook(watch)
                perform(json.loads(line))
            except BaseException as error:
                state["left"] = None
                say({"error": "%s: %s" % (type(error).__name__, str(error)[:400])})
                code = 1
            OUT.flush()
            os._exit(code)
        _, status = os.waitpid(pid, 0)
        say({"exit": os.waitstatus_to_exitcode(status)})


try:
    main()
except BaseException as error:  # everything the submission raises is the judge's to read
    say({"error": "%s: %s" % (type(error).__name__, str(error)[:400])})
    raise
