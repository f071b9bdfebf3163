# canary: infradev-grading 6b0f4f5e-2c1b-4f6e-9a55-0c3d7d1a8e11
"""The half that imports the submission: a scheduler driven command by command."""
import json
import os
import sys
from unittest.mock import Mock

OUT = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
sys.path.insert(0, os.environ.get("INFRADEV_WORKSPACE", "/workspace/vllm"))


def say(message):
    OUT.write(json.dumps(message) + "\n")
    OUT.flush()


class Session:
    def __init__(self, block_size, num_blocks, budget):
        import torch
        from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
        from vllm.utils import sha256
        from vllm.v1.core.kv_cache_utils import init_none_hash
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.structured_output import StructuredOutputManager

        init_none_hash(sha256)
        config = VllmConfig(
            scheduler_config=SchedulerConfig(max_num_seqs=16, max_num_batched_tokens=budget, max_model_len=budget,
                                             enable_chunked_prefill=True),
            model_config=ModelConfig(model="facebook/opt-125m", dtype="float16", seed=42),
            cache_config=CacheConfig(block_size=block_size, gpu_memory_utilization=0.9, swap_space=0,
                                     cache_dtype="auto", enable_prefix_caching=True),
            device_config=DeviceConfig("cpu"),
        )
        config.cache_config.num_gpu_blocks = num_blocks
        self.scheduler = Scheduler(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(
                num_blocks=num_blocks, kv_cache_tensors=[],
                kv_cache_groups=[KVCacheGroupSpec(["layer"], FullAttentionSpec(block_size, 1, 1, torch.float32, False))],
            ),
            log_stats=True,
            structured_output_manager=StructuredOutputManager(config),
        )
        self.block_size = block_size
        self.offers, self.lookups, self.last = {}, [], None
        connector = Mock()
        connector.get_num_new_matched_tokens.side_effect = self.offer
        connector.request_finished.return_value = (False, None)
        connector.take_events.return_value = ()
        self.scheduler.connector = connector

    def offer(self, request, computed):
        """The external cache: for each lookup of a request the next entry of its plan."""
        self.lookups.append(request.request_id)
        plan = self.offers.get(request.request_id) or []
        tokens, asynchronous = plan.pop(0) if plan else (0, False)
        return max(0, tokens - computed), asynchronous and tokens > computed

    def add(self, request_id, prompt, max_tokens, offers):
        from vllm import SamplingParams
        from vllm.utils import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher
        from vllm.v1.request import Request

        self.offers[request_id] = [list(offer) for offer in offers]
        self.scheduler.add_request(Request(
            request_id=request_id, prompt_token_ids=prompt,
            sampling_params=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
            pooling_params=None, mm_features=None, eos_token_id=50256,
            block_hasher=get_request_block_hasher(self.block_size, sha256)))
        return {}

    def schedule(self):
        self.last = self.scheduler.schedule()
        computed = {item.req_id: item.num_computed_tokens for item in self.last.scheduled_new_reqs}
        cached = self.last.scheduled_cached_reqs
        computed.update(zip(cached.req_ids, cached.num_computed_tokens))
        return {"scheduled": dict(self.last.num_scheduled_tokens), "computed": computed}

    def update(self, invalid, recved):
        from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

        ids = list(self.last.num_scheduled_tokens)
        connector_output = None
        if invalid or recved:
            connector_output = KVConnectorOutput(finished_recving=set(recved) or None, invalid_block_ids=set(invalid))
        outputs = self.scheduler.update_from_output(self.last, ModelRunnerOutput(
            req_ids=ids, req_id_to_index={name: i for i, name in enumerate(ids)},
            sampled_token_ids=[[7] for _ in ids], logprobs=None, prompt_logprobs_dict={}, pooler_output=None,
            kv_connector_output=connector_output))
        emitted = {}
        for group in outputs.values():
            for item in group.outputs:
                emitted[item.request_id] = emitted.get(item.request_id, 0) + len(item.new_token_ids)
        return {"emitted": emitted}

    def blocks(self, request_id):
        (ids,) = self.scheduler.kv_cache_manager.get_block_ids(request_id)
        return {"blocks": list(ids)}

    def abort(self, request_id):
        from vllm.v1.request import RequestStatus

        self.scheduler.finish_requests([request_id], RequestStatus.FINISHED_ABORTED)
        return {}

    def state(self):
        pool = self.scheduler.kv_cache_manager.block_pool
        return {
            "free": pool.free_block_queue.num_free_blocks,
            "referenced": sum(1 for block in pool.blocks if block.ref_cnt and not block.is_null),
            "requests": sorted(self.scheduler.requests),
            "running": [r.request_id for r in self.scheduler.running],
            "waiting": [r.request_id for r in self.scheduler.waiting],
            "lookups": list(self.lookups),
        }


def main():
    import vllm.v1.core.sched.scheduler  # noqa: F401  the slow import happens before the first question

    say({"ready": True})
    session = None
    for line in sys.stdin:
        command, arguments = json.loads(line)
        if command == "new":
            session = Session(**arguments)
            say({})
        else:
            say(getattr(session, command)(**arguments))


try:
    main()
except BaseException as error:  # everything the submission raises is the judge's to read
    say({"error": "%s: %s" % (type(error).__name__, str(error)[:400])})
    raise
