/* SPDX-License-Identifier: Apache-2.0
 *
 * What a daemon uses: bytes of its devices and of the host cache, leases, descriptors and threads. Two accounts of an
 * idle daemon with the same models are equal, except for the pools that account.c names.
 */
#pragma once

#include "tests/lib/daemon.h"

/* One line for each resource, sorted; never freed. */
char *account_of(const struct daemon *d);

/* Waits until the account is this one; fails with their difference after 20 s. */
void account_await(const struct daemon *d, const char *account);
