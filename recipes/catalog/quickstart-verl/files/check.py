"""Quickstart check: the reward function for arithmetic answers of the installed release."""
import importlib.metadata
import importlib.util
import os
import sys

import numpy as np

ROOT = os.environ.get("INFRADEV_QUICKSTART_ROOT", "/workspace/quickstart-verl")
# 0.5.0 began to look at the end of long answers only.
FAR_ANSWER_COUNTS = {"0.4.1": 1.0, "0.5.0": 0.0}

spec = importlib.util.spec_from_file_location("checked", os.path.join(ROOT, "verl/utils/reward_score/gsm8k.py"))
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)

release = importlib.metadata.version("verl")
if release not in FAR_ANSWER_COUNTS:
    sys.exit("no check for verl %s" % release)
rng = np.random.default_rng(20250627)
numbers, guesses = rng.integers(0, 3, size=(2, 200))
rewards = [module.compute_score("so it is\n#### %d" % guess, str(number)) for number, guess in zip(numbers, guesses)]
if not np.array_equal(np.array(rewards) > 0, numbers == guesses):
    sys.exit("the rewards do not follow the answers")
far = module.compute_score("#### 7\n" + "thinking aloud " * 40, "7")
if far != FAR_ANSWER_COUNTS[release]:
    sys.exit("an answer far from the end scores %r in verl %s" % (far, release))
if "torch" in sys.modules:
    sys.exit("the check imported torch")
print("verl %s: %d of 200 answers rewarded, an answer far from the end scores %.0f"
      % (release, int(np.sum(np.array(rewards) > 0)), far))
