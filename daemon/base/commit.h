/* SPDX-License-Identifier: Apache-2.0
 *
 * The commit that the program was built from, with "-dirty" for a tree that differs; "unknown" without one. The
 * Makefile defines it at link time.
 */
#pragma once

extern const char build_commit[];
