# SPDX-License-Identifier: Apache-2.0
"""vLLM's interface to LoRA adapters: a resolver, which vLLM asks for the model of a request that it does not have."""

from __future__ import annotations

import asyncio
import os
import zlib

from vllm import envs
from vllm.logger import init_logger
from vllm.lora.request import LoRARequest
from vllm.lora.resolver import LoRAResolver, LoRAResolverRegistry

from streamerd._engines.adapters import Adapters

logger = init_logger("vllm.streamerd")


class AdapterResolver(LoRAResolver):
    def __init__(self, adapters: Adapters) -> None:
        self._adapters = adapters

    async def resolve_lora(self, base_model_name: str, lora_name: str) -> LoRARequest | None:
        """Other requests are served meanwhile."""
        folder = await asyncio.to_thread(self._adapters.find, base_model_name, lora_name)
        if folder is None:
            return None
        # vLLM gives it a number of its own, and wants one that is not 0.
        return LoRARequest(lora_name=lora_name, lora_int_id=1 + zlib.crc32(lora_name.encode()), lora_path=folder)


def register(sources: list[str], bases: list[str]) -> None:
    adapters = Adapters(sources, bases, os.path.join(envs.VLLM_CACHE_ROOT, "streamerd"), logger)
    LoRAResolverRegistry.register_resolver("streamerd", AdapterResolver(adapters))
