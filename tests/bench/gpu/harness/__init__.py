# SPDX-License-Identifier: Apache-2.0
"""What Python programs that measure or test a daemon share: processes, the daemon, models, the library's binding."""
