# SPDX-License-Identifier: Apache-2.0
"""What the loaders use of vLLM beyond its documented plug-in interface, and the versions they were tested with.

Nothing here imports vLLM before `refusal` is called.
"""

from __future__ import annotations

from . import interface
from .interface import Use

# Minor versions, newest first; docs/vllm.md says how.
TESTED = ("0.32", "0.31")

_LOADER = "vllm.model_executor.model_loader"
_LINEAR = "vllm.model_executor.layers.linear"
_EMBEDDING = "vllm.model_executor.layers.vocab_parallel_embedding"

# Of every format: registration, configuration, the engine's arguments, what is checked for `alias`.
COMMON: tuple[Use, ...] = (
    ("vllm:envs.VLLM_CACHE_ROOT", ()),
    ("vllm.config:ModelConfig", ("model", "model_weights", "revision", "quantization", "enable_sleep_mode")),
    ("vllm.config:VllmConfig", ("model_config", "load_config", "lora_config", "offload_config", "speculative_config")),
    ("vllm.config:get_current_vllm_config", ()),
    ("vllm.config.load:LoadConfig", ("load_format", "download_dir", "model_loader_extra_config")),
    ("vllm.engine.arg_utils:EngineArgs.create_engine_config", ()),
    ("vllm.engine.arg_utils:get_model_path", ("model", "revision")),
    (
        "vllm.engine.arg_utils:EngineArgs",
        ("model", "tokenizer", "revision", "tokenizer_revision", "download_dir", "load_format", "served_model_name",
         "speculative_config", "model_loader_extra_config"),
    ),
    ("vllm.logger:init_logger", ()),
    ("vllm.platforms:current_platform.is_cuda_alike", ()),
    (f"{_LOADER}:register_model_loader", ("load_format",)),
    (f"{_LOADER}.base_loader:BaseModelLoader.download_model", ("model_config",)),
    (f"{_LOADER}.base_loader:BaseModelLoader.load_weights", ("model", "model_config")),
    (f"{_LOADER}.weight_utils:default_weight_loader", ("param", "loaded_weight")),
    (f"{_LINEAR}:ReplicatedLinear.weight_loader", ("param", "loaded_weight")),
    (f"{_LINEAR}:ColumnParallelLinear.weight_loader", ("param", "loaded_weight")),
    (f"{_LINEAR}:ColumnParallelLinear.weight_loader_v2", ()),
    (f"{_LINEAR}:MergedColumnParallelLinear.weight_loader_v2", ()),
    (f"{_LINEAR}:QKVParallelLinear.weight_loader_v2", ()),
    (f"{_LINEAR}:RowParallelLinear.weight_loader", ("param", "loaded_weight")),
    (f"{_LINEAR}:RowParallelLinear.weight_loader_v2", ()),
    (f"{_LINEAR}:UnquantizedLinearMethod", ()),
    ("vllm.model_executor.layers.quantization.kv_cache:BaseKVCacheMethod", ()),
    (f"{_EMBEDDING}:ParallelLMHead", ()),
    (f"{_EMBEDDING}:UnquantizedEmbeddingMethod", ()),
    (f"{_EMBEDDING}:VocabParallelEmbedding.weight_loader", ("param", "loaded_weight")),
)  # fmt: skip

# The engine's own loading code, which the loader feeds.
DEFAULT: tuple[Use, ...] = (
    (f"{_LOADER}.default_loader:DefaultModelLoader.load_weights", ("model", "model_config")),
    (f"{_LOADER}.default_loader:DefaultModelLoader.get_all_weights", ("model_config", "model")),
    (
        f"{_LOADER}.default_loader:DefaultModelLoader._prepare_weights",
        ("model_name_or_path", "subfolder", "revision", "fall_back_to_pt", "allow_patterns_overrides"),
    ),
    (f"{_LOADER}.default_loader:DefaultModelLoader._get_weights_iterator", ("source",)),
    (
        f"{_LOADER}.default_loader:DefaultModelLoader.Source",
        ("model_or_path", "revision", "subfolder", "prefix", "fall_back_to_pt", "allow_patterns_overrides"),
    ),
)

# The names of a rank's files, and of tensors that share memory.
SHARDED: tuple[Use, ...] = (
    (f"{_LOADER}.sharded_state_loader:ShardedStateLoader._render_default_pattern", ("pattern", "part")),
    (f"{_LOADER}.sharded_state_loader:ShardedStateLoader._filter_subtensors", ("tensors",)),
)

# For `publish`. Where one is missing, the model is loaded as without.
PUBLISH: tuple[Use, ...] = (
    ("vllm.envs:compile_factors", ()),
    ("vllm.config:VllmConfig", ("parallel_config", "cache_config", "attention_config", "kernel_config", "additional_config")),
    ("vllm.config:ModelConfig", ("runner", "model_impl", "dtype", "max_model_len")),
    ("vllm.config:ModelConfig.get_vocab_size", ()),
    ("vllm.config:CompilationConfig", ("mode", "custom_ops", "static_forward_context", "static_all_moe_layers")),
    ("vllm.config:set_current_vllm_config", ("vllm_config",)),
    ("vllm.distributed:get_tensor_model_parallel_rank", ()),
    ("vllm.distributed.parallel_state:_groups", ()),
    ("vllm.distributed.parallel_state:GroupCoordinator._all_reduce_out_place", ("input_",)),
    ("vllm.forward_context:set_forward_context", ("attn_metadata", "vllm_config", "num_tokens", "skip_compiled")),
    ("vllm.model_executor.layers.attention:Attention", ()),
    ("vllm.model_executor.layers.rotary_embedding:_ROPE_DICT", ()),
    ("vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm", ("layer", "remove_weight")),
    ("vllm.model_executor.layers.quantization.base_config:QuantizeMethodBase.supports_pre_processed_weights", ()),
    (f"{_LOADER}.base_loader:BaseModelLoader.load_model", ("vllm_config", "model_config", "prefix")),
    (f"{_LOADER}.reload.layerwise:get_layerwise_info", ("layer",)),
    (f"{_LOADER}.reload.types:LayerReloadingInfo", ("restore_device",)),
    (f"{_LOADER}.utils:initialize_model", ("vllm_config", "prefix", "model_config")),
    (f"{_LOADER}.utils:process_weights_after_loading", ("model", "model_config", "target_device")),
    ("vllm.model_executor.utils:weights_already_processed", ()),
    ("vllm.utils.torch_utils:set_default_torch_dtype", ("dtype",)),
)

# Of `artifacts`: the folder of compiled code, what vLLM's hashes of it are made of, and when it is complete.
ARTIFACTS: tuple[Use, ...] = (
    ("vllm:envs.VLLM_CACHE_ROOT", ()),
    ("vllm:envs.VLLM_DISABLE_COMPILE_CACHE", ()),
    ("vllm.compilation.caching:aot_compile_hash_factors", ("vllm_config",)),
    ("vllm.config:CompilationConfig", ("mode", "cache_dir", "local_cache_dir")),
    ("vllm.config.compilation:CompilationMode.NONE", ()),
    ("vllm.config:ParallelConfig", ("worker_cls", "rank", "world_size", "data_parallel_index")),
    ("vllm.v1.worker.worker_base:WorkerBase.compile_or_warm_up_model", ()),
)

# Of the part of `artifacts` that is about the classes of models.
MODELINFOS: tuple[Use, ...] = (
    ("vllm:envs.VLLM_DISABLE_COMPILE_CACHE", ()),
    ("vllm.config:VllmConfig", ("compilation_config", "speculative_config")),
    ("vllm.config:ModelConfig.architecture", ()),
    ("vllm.config.compilation:CompilationMode.NONE", ()),
    ("vllm.model_executor.models.registry:ModelRegistry.models", ()),
    ("vllm.model_executor.models.registry:ModelRegistry._normalize_arch", ("architecture", "model_config")),
    ("vllm.model_executor.models.registry:_LazyRegisteredModel._get_cache_dir", ()),
    ("vllm.model_executor.models.registry:_LazyRegisteredModel._get_cache_filename", ()),
)

_TRANSFER = "vllm.distributed.weight_transfer.base"

# Of the weight transfer backend, both sides.
TRANSFER: tuple[Use, ...] = (
    ("vllm.config.weight_transfer:WeightTransferConfig", ("backend",)),
    ("vllm.distributed.weight_transfer.factory:WeightTransferEngineFactory.register_engine", ("name",)),
    ("vllm.distributed.weight_transfer.factory:WeightTransferTrainerFactory.register_engine", ("name",)),
    (f"{_TRANSFER}:WeightTransferInitInfo", ()),
    (f"{_TRANSFER}:WeightTransferUpdateInfo", ()),
    (f"{_TRANSFER}:WeightTransferEngine", ("config", "vllm_config", "device", "model")),
    (f"{_TRANSFER}:WeightTransferEngine.init_transfer_engine", ("init_info",)),
    (f"{_TRANSFER}:WeightTransferEngine.start_weight_update", ()),
    (f"{_TRANSFER}:WeightTransferEngine.receive_weights", ("update_info",)),
    (f"{_TRANSFER}:WeightTransferEngine.finish_weight_update", ()),
    (f"{_TRANSFER}:TrainerInitInfo", ("rank",)),
    (f"{_TRANSFER}:TrainerWeightTransferEngine", ("client", "source", "is_sender")),
    (f"{_TRANSFER}:TrainerWeightTransferEngine.trainer_init", ("init_info", "client", "source")),
    (f"{_TRANSFER}:TrainerWeightTransferEngine.send_weights", ()),
    (f"{_TRANSFER}:VLLMWeightSyncClient.update_weights", ("update_info",)),
    (f"{_TRANSFER}:WeightSource.metadata", ()),
    (f"{_TRANSFER}:WeightSource.held_names", ()),
    (f"{_LOADER}.mtp_validation:disable_mtp_completeness_check", ()),
    (f"{_LOADER}.reload:initialize_layerwise_reload", ("model",)),
    (f"{_LOADER}.reload:finalize_layerwise_reload", ("model", "model_config")),
)

# Of the resolver of adapters.
ADAPTERS: tuple[Use, ...] = (
    ("vllm:envs.VLLM_CACHE_ROOT", ()),
    ("vllm.logger:init_logger", ()),
    ("vllm.lora.request:LoRARequest", ("lora_name", "lora_int_id", "lora_path")),
    ("vllm.lora.resolver:LoRAResolver.resolve_lora", ("base_model_name", "lora_name")),
    ("vllm.lora.resolver:LoRAResolverRegistry.register_resolver", ("resolver_name", "resolver")),
)

USES: dict[str, tuple[Use, ...]] = {
    "streamerd": COMMON + DEFAULT,
    "streamerd_sharded": COMMON + DEFAULT + SHARDED,
}


def refusal(version: str, load_format: str) -> str | None:
    """Why a load format cannot be used with the installed vLLM; None if it can."""
    return interface.refusal("vLLM", version, f"load format {load_format}", USES[load_format], TESTED)


def transfer_refusal(version: str) -> str | None:
    """The same of the weight transfer backend."""
    return interface.refusal("vLLM", version, "weight transfer by streamerd", TRANSFER, TESTED[:1])


def adapters_refusal(version: str) -> str | None:
    """The same of the resolver of adapters."""
    return interface.refusal("vLLM", version, "STREAMERD_ADAPTERS", ADAPTERS, TESTED[:1])
