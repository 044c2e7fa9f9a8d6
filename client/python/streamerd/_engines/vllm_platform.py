# SPDX-License-Identifier: Apache-2.0
"""The processor or GPU that vLLM runs on, as a text for keys."""

from __future__ import annotations

import platform

import torch
from vllm.platforms import current_platform


def instruction_set() -> str:
    if current_platform.is_cuda():
        major, minor = torch.cuda.get_device_capability()
        return f"cuda {torch.version.cuda} sm{major}{minor} {torch.cuda.get_device_name()}"
    return f"cpu {platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
