# SPDX-License-Identifier: Apache-2.0
"""SGLang load format ``streamerd``.

SGLang calls `register` in each of its processes (entry point group ``sglang.srt.plugins``):

    python -m sglang.launch_server --model-path Qwen/Qwen3-8B --load-format streamerd

The loader itself, which depends on SGLang's internals, is in `streamerd.sglang_engine`.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

FORMAT = "streamerd"

# Versions that the loader was checked against; docs/vllm.md says how.
TESTED = ("0.5.23",)


def unsupported(found: str) -> str | None:
    """Why the loader refuses this version of SGLang; None for a version that it was checked against."""
    if found in TESTED:
        return None
    return f"SGLang {found} is not supported by this streamerd package, which was checked against {', '.join(TESTED)}"


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
    reason = unsupported(version("sglang"))
    if reason is not None:
        raise RuntimeError(reason)
    from streamerd.sglang_engine import StreamerdLoader

    config.load_format = StreamerdLoader
