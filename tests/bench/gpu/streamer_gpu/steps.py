# SPDX-License-Identifier: Apache-2.0
"""The steps, in the order in which they run: the most important first in each plan, and what may hang after all that
has a target. A step without a plan provokes a fault of the GPU, after which later results would mean less: it runs
last, and only by name."""

from . import ceilings, engine_steps, host_copies, llama_steps, loaders, rates, sharing
from .bench import Step

CEILINGS = ("combined_ceiling", "h2d_ceiling", "page_cache_ceiling")
LLAMA = ("llama_load_into", "llama_tokens_differ_vmm", "llama_tokens_differ_ipc")
LLAMA_KILLED = ("llama_tokens_differ_killed",)
KILLED = ("lease_ends_after_kill", "bytes_reused_consumer")
MACHINE = Step("machine", None, 120, (), rates.machine_step)

STEPS = [
    # name, plan, seconds at most, rows, function, models
    Step("doctor", "a", 60, (), sharing.doctor_step),
    Step("sharing", "a", 60, ("tensors_differ_1gib_ipc", "tensors_differ_1gib_third"), sharing.sharing_step, ("1gib",)),
    Step("sharing-vmm", "a", 40, ("tensors_differ_1gib_vmm",), sharing.sharing_vmm_step, ("1gib",)),
    Step("loads-8gib", "a", 90, ("warm_8gib", "verify_8gib", *CEILINGS), rates.warm_8gib_step, ("tiny", "8gib")),
    Step("loads-8gib-vmm", "a", 60, ("warm_vmm_8gib",), rates.warm_vmm_step, ("tiny", "8gib")),
    Step("sharing-while-loading", "a", 90, ("tensors_differ_loading_",), sharing.sharing_while_loading_step, ("tiny", "8gib")),
    Step("sharing-8gib", "a", 40, ("tensors_differ_8gib",), sharing.sharing_large_step("8gib"), ("8gib",)),
    Step("small-tensors", "a", 60, (), sharing.small_tensors_step, ("small",)),
    Step("host-memory", "a", 60, ("host_memory_beyond_ring",), rates.host_memory_step, ("tiny", "8gib")),
    Step("attach-sizes", "a", 90, sharing.ATTACH_SIZES, sharing.attach_sizes_step("1gib", "8gib"), ("1gib", "8gib")),
    Step("host-cache", "a", 90, ("host_cache_", "tensors_differ_restored"), rates.host_cache_step, ("tiny", "8gib")),
    Step("unload-while-loading", "a", 60, ("unload_",), rates.unload_step, ("tiny", "4gib", "8gib")),
    Step("loads-1gib", "a", 60, ("warm_1gib",), rates.warm_step("1gib", 5), ("tiny", "1gib")),
    Step("consumer-killed", "a", 60, KILLED, sharing.consumer_killed_step, ("tiny", "1gib")),
    Step("contexts", "a", 60, ("context_",), rates.contexts_step, ("tiny",)),
    Step("calls", "a", 60, ("contract_broken",), sharing.calls_step, ("tiny",)),
    Step("cold-8gib", "a", 90, ("cold_8gib", "disk_ceiling"), rates.cold_step("8gib", 2), ("tiny", "8gib")),
    Step("cold-1gib", "a", 60, ("cold_1gib",), rates.cold_step("1gib", 2), ("tiny", "1gib")),
    Step("daemon-killed-vmm", "a", 60, ("bytes_reused_vmm",), sharing.daemon_killed_step("vmm"), ("1gib",)),
    Step("descriptors", "a", 60, ("bytes_reused_descriptors",), sharing.descriptors_step, ("1gib",)),
    Step("daemon-killed-ipc", "a", 60, ("bytes_reused_ipc",), sharing.daemon_killed_step("ipc"), ("1gib",)),
    #
    Step("attach-segments", "b", 150, sharing.ATTACH_SEGMENTS, sharing.attach_segments_step, ("16gib",)),
    Step("ceilings", "b", 60, ("ceiling_",), ceilings.ceilings_step, ("8gib",)),
    Step("copy-modes", "b", 60, ("copies_",), rates.copy_modes_step, ("tiny", "8gib")),
    Step("call-times", "b", 60, ("call_",), sharing.call_times_step),
    Step("host-copies", "b", 60, ("host_register", "host_copy"), host_copies.host_copies_step, ("1gib",)),
    Step("context-again", "b", 40, ("load_context_",), rates.context_again_step, ("tiny",)),
    Step("block-sizes", "b", 120, ("blocks_",), rates.block_sizes_step, ("tiny", "8gib")),
    Step("users-and-namespaces", "b", 150, (), sharing.foreign_clients_step, ("tiny",)),
    Step("bare-ipc", "b", 150, (), sharing.bare_ipc_step),
    #
    Step("torch", "c", 90, ("tensors_differ_1gib_torch",), sharing.torch_step, ("1gib",), imports=True),
    Step("loaders-warm", "c", 120, ("loader_warm_",), loaders.warm_loaders_step, ("tiny", "8gib"), imports=True),
    Step("language-model", "c", 180, LLAMA, llama_steps.language_model_step, ("tiny",), imports=True),
    Step("publish", "c", 120, ("publish_",), llama_steps.publish_step, ("tiny",), imports=True),
    Step("update", "c", 120, ("update_",), engine_steps.update_step, ("tiny",), imports=True),
    Step("compiled-code", "c", 330, ("artifacts_",), engine_steps.compiled_code_step, imports=True),
    Step("loaders-tmpfs", "c", 120, ("loader_tmpfs_",), loaders.tmpfs_loaders_step, ("tiny", "8gib"), imports=True),
    Step("loads-30gib", "c", 120, ("warm_30gib", *CEILINGS), rates.warm_step("30gib", 3), ("tiny", "30gib")),
    Step("torch-30gib", "c", 120, ("tensors_differ_30gib_torch",), sharing.torch_30gib_step, ("30gib",), imports=True),
    Step("sharing-30gib", "c", 60, ("tensors_differ_30gib_ipc",), sharing.sharing_large_step("30gib"), ("30gib",)),
    Step("attach-30gib", "c", 60, ("attach_ipc_30gib", "attach_vmm_30gib"), sharing.attach_sizes_step("30gib"), ("30gib",)),
    Step("language-model-killed", "c", 90, LLAMA_KILLED, llama_steps.killed_step, ("tiny",), imports=True),
    Step("cold-30gib", "c", 90, ("cold_30gib", "disk_ceiling"), rates.cold_step("30gib", 1), ("tiny", "30gib")),
    #
    Step("rights", None, 40, (), sharing.rights_step, ("tiny",)),
]


def choose(plan, only, skip):
    """The steps of a plan, or of all plans; `only` names steps of any plan. ValueError names a step that does not
    exist."""
    names = {step.name for step in STEPS}
    for name in only + skip:
        if name not in names:
            raise ValueError(f"no step is called '{name}': {', '.join(step.name for step in STEPS)}")
    if only:
        chosen = [step for step in STEPS if step.name in only and (plan is None or step.plan in (plan, None))]
    else:
        chosen = [step for step in STEPS if step.plan is not None and plan in (None, step.plan)]
    return [step for step in chosen if step.name not in skip]
