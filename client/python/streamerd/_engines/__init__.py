# SPDX-License-Identifier: Apache-2.0
"""What the load formats of inference engines consist of; streamerd.vllm and streamerd.sglang register them."""
