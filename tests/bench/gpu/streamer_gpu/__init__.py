# SPDX-License-Identifier: Apache-2.0
"""What `tests/gpu/run` consists of; see there."""
