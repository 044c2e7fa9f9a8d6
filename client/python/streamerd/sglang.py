# SPDX-License-Identifier: Apache-2.0
"""SGLang load format ``streamerd``.

SGLang calls `register` in each of its processes (entry point group ``sglang.srt.plugins``):

    python -m sglang.launch_server --model-path Qwen/Qwen3-8B --load-format streamerd

The loader itself, which depends on SGLang's internals, is in `streamerd._engines.sglang_loader`.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from ._engines.interface import Use, refusal

FORMAT = "streamerd"

# Versions that the loader was checked against; docs/vllm.md says how.
TESTED = ("0.5.23",)

_CONFIGS = "sglang.srt.configs"
_LOADER = "sglang.srt.model_loader.loader:DefaultModelLoader"

# What the loader uses of SGLang beyond its plug-in interface.
USES: tuple[Use, ...] = (
    (
        f"{_CONFIGS}.load_config:LoadConfig",
        ("load_format", "download_dir", "model_loader_extra_config", "draft_model_idx"),
    ),
    (f"{_CONFIGS}.load_config:LoadFormat.AUTO", ()),
    (f"{_CONFIGS}.load_config:LoadFormat.SAFETENSORS", ()),
    (f"{_CONFIGS}.model_config:ModelConfig", ("model_path", "revision", "is_draft_model")),
    (f"{_LOADER}._get_weights_iterator", ("source",)),
    (f"{_LOADER}._filter_mtp_weights", ("weights_iterator", "prefix", "draft_model_idx")),
    (
        f"{_LOADER}._prepare_weights",
        ("model_name_or_path", "revision", "fall_back_to_pt", "allow_patterns_overrides"),
    ),
    (
        "sglang.srt.model_loader.weight_utils:maybe_add_mtp_safetensors",
        ("hf_weights_files", "hf_folder", "index_file", "hf_config"),
    ),
    (
        f"{_LOADER}.Source",
        ("model_or_path", "revision", "prefix", "fall_back_to_pt", "allow_patterns_overrides", "model_config"),
    ),
)


def register() -> None:
    """Adds the load format to SGLang's command line and to its configuration."""
    from sglang.srt.plugins import HookRegistry
    from sglang.srt.plugins.hook_registry import HookType
    from sglang.srt.server_args import add_load_format_choices

    add_load_format_choices([FORMAT])
    HookRegistry.register(
        "sglang.srt.configs.load_config.LoadConfig._verify_load_format", _verify_load_format, HookType.AROUND
    )


def _verify_load_format(original: Any, config: Any) -> None:
    """Names the loader's class, which SGLang takes in place of one of its own formats."""
    if config.load_format != FORMAT:
        original(config)
        return
    reason = refusal("SGLang", version("sglang"), f"load format {FORMAT}", USES, TESTED)
    if reason is not None:
        raise RuntimeError(reason)
    from streamerd._engines.sglang_loader import StreamerdLoader

    config.load_format = StreamerdLoader
