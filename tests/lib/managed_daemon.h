/* SPDX-License-Identifier: Apache-2.0
 *
 * A daemon under a fake service manager, one file to load, and `client`: the fixture of the restart tests.
 */
#pragma once

#include "tests/lib/service_manager.h"
#include "tests/lib/fixture.h"

#define MANAGED_SNAPSHOT "sd-snapshot"
#define MANAGED_MODELS "sd-m"
#define MANAGED_PROCESSES "sd-p"
#define MANAGED_STORE 64

struct managed_daemon {
        struct manager m;
        struct model *model; /* in managed_file() */
};
extern struct managed_daemon managed;

void managed_begin(void);
void managed_begin_sized(size_t max); /* number of number of descriptors in the store */
void managed_end(void);
const char *managed_file(void);

/* Loads the file, and waits until its segment and its commit record are stored. */
void managed_load(const char *name);
/* Attaches to "m", and waits until the process's pidfd is stored. */
streamer_lease *managed_attach(void);

/* 0: SIGTERM; 1: kill -9. The client stays as it is, or is another one. */
void managed_restart(int crash);
void managed_restart_and_reconnect(int crash);
void managed_reconnect(void);

struct stored *managed_segment(void); /* of the first model */
struct stored *managed_record(void);
