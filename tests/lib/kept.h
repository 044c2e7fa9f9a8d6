/* SPDX-License-Identifier: Apache-2.0
 *
 * A daemon under a manager, one file to load, one client: what every test of restarts begins with.
 */
#ifndef TESTS_LIB_KEPT_H
#define TESTS_LIB_KEPT_H

#include "tests/lib/manager.h"
#include "tests/lib/stage.h"

#define KEPT_BOOK "sd-book"
#define KEPT_MODELS "sd-m"
#define KEPT_PROCESSES "sd-p"
#define KEPT_STORE 64

struct kept_stage {
        struct manager m;
        struct model *model; /* in kept_file() */
        streamer_client *client;
};
extern struct kept_stage kept;

void kept_begin(void);
void kept_begin_sized(size_t max); /* descriptors in the store */
void kept_end(void);
const char *kept_file(void);

/* Loads it, and waits until it is kept: a segment and a record. */
void kept_load(const char *name);
/* Attaches to "m", and waits until the process is kept. */
streamer_lease *kept_attach(void);

/* 0: SIGTERM; 1: kill -9. The client stays as it is, or is another one. */
void kept_restart(int crash);
void kept_restart_and_reconnect(int crash);
void kept_reconnect(void);

bool kept_log_says(const char *text);
struct stored *kept_segment(void); /* of the first model */
struct stored *kept_record(void);

#endif
