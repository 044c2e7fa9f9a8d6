# SPDX-License-Identifier: Apache-2.0
"""ready.py REQUEST: a vLLM engine in this process, from exec to ready for a request.

Prints one line of JSON: CLOCK_MONOTONIC when vLLM was imported and when the engine was ready, the seconds that its
loader took for the weights, and the first tokens. Then, for each line of its standard input, the tokens of another
request. The process ends with its standard input.
"""

from __future__ import annotations

import json
import os
import sys
import time

replies = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)
os.environ.update(HF_HUB_OFFLINE="1", VLLM_CPU_KVCACHE_SPACE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_NO_USAGE_STATS="1")

import vllm  # noqa: E402
import vllm.model_executor.model_loader as model_loader  # noqa: E402

imported = time.clock_gettime(time.CLOCK_MONOTONIC)
seconds = 0.0
get_model_loader = model_loader.get_model_loader


def timed_loader(config):
    """load_model() of a loader is what weights take: initialising, loading and processing them."""
    loader = get_model_loader(config)
    load = loader.load_model

    def load_model(*arguments, **options):
        global seconds
        began = time.perf_counter()
        model = load(*arguments, **options)
        seconds += time.perf_counter() - began
        return model

    loader.load_model = load_model
    return loader


model_loader.get_model_loader = timed_loader
request = json.loads(sys.argv[1])
engine = vllm.LLM(
    model=request["model"],
    load_format=request["load_format"],
    model_loader_extra_config=request["extra"],
    skip_tokenizer_init=True,
    enforce_eager=True,
    max_model_len=128,
    dtype="bfloat16",
    disable_log_stats=True,
)
ready = time.clock_gettime(time.CLOCK_MONOTONIC)


def generate() -> list[int]:
    sampling = vllm.SamplingParams(max_tokens=8, temperature=0, detokenize=False)
    [output] = engine.generate([{"prompt_token_ids": [1, 5, 9]}], sampling, use_tqdm=False)
    return list(output.outputs[0].token_ids)


replies.write(json.dumps({"imported": imported, "ready": ready, "weights": seconds, "tokens": generate()}) + "\n")
for _ in sys.stdin:
    replies.write(json.dumps(generate()) + "\n")
os._exit(0)
