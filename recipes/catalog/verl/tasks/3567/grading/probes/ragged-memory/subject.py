# canary: infradev-grading 6b0f4f5e-2c1b-4f6e-9a55-0c3d7d1a8e11
"""The half that imports the submission: runs what the judge asks, reports digests."""
import hashlib
import json
import os
import sys

OUT = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
sys.path.insert(0, os.environ.get("INFRADEV_WORKSPACE", "/workspace/verl"))


def say(message):
    OUT.write(json.dumps(message) + "\n")
    OUT.flush()


def rows_of(nested):
    return [hashlib.sha256(row.contiguous().numpy().tobytes()).hexdigest() for row in nested.unbind()]


def run(spec):
    import torch
    from verl.utils import tensordict_utils as tu
    from verl.utils.dataset.dataset_utils import DatasetPadMode, SFTTensorCollator
    from verl.workers.engine.utils import postprocess_batch_func, prepare_micro_batches

    samples = []
    for row, length in enumerate(spec["lengths"]):
        pos = torch.arange(length, dtype=torch.int64)
        first = (row * 1000003 + spec["salt"]) % 49999
        samples.append({
            "input_ids": (first + pos * 7919) % 50021,
            "position_ids": pos,
            "loss_mask": ((pos + row) % 3 != 0).to(torch.int64),
        })
    batch = dict(SFTTensorCollator(DatasetPadMode.NO_PADDING)(samples))
    del samples
    batch["names"] = list(spec["names"])
    data = tu.get_tensordict(batch, non_tensor_dict={
        "note": spec["note"],
        "use_dynamic_bsz": True,
        "max_token_len_per_gpu": spec["max_token_len"],
        "pad_mode": DatasetPadMode.NO_PADDING,
    })
    micro_batches, indices = prepare_micro_batches(data)
    outputs, reports = [], []
    for micro in micro_batches:
        names = micro["names"]
        reports.append({
            "size": micro.batch_size[0],
            "note": tu.get_non_tensor_data(micro, "note", None),
            "names": names if isinstance(names, list) else names.tolist(),
            **{key: rows_of(micro[key]) for key in ("input_ids", "position_ids", "loss_mask")},
        })
        ids = micro["input_ids"]
        scores = torch.nested.nested_tensor_from_jagged(ids.values().to(torch.float64) * 0.5 + 1.0, ids.offsets())
        outputs.append({"model_output": {"scores": scores}, "loss": 0.0, "metrics": {}})
    restored = postprocess_batch_func(outputs, indices, data)["model_output"]["scores"]
    return {"indices": [[int(i) for i in part] for part in indices], "micro_batches": reports,
            "restored": rows_of(restored)}


def main():
    import verl.workers.engine.utils  # noqa: F401  the slow import happens before the first question

    say({"ready": True})
    for line in sys.stdin:
        say(run(json.loads(line)["run"]))


try:
    main()
except BaseException as error:  # everything the submission raises is the judge's to read
    say({"error": "%s: %s" % (type(error).__name__, str(error)[:400])})
    raise
