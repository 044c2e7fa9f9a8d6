/* SPDX-License-Identifier: Apache-2.0
 *
 * Common to the integration tests: the daemon of a group of tests, client calls, comparisons, and "the daemon still
 * serves and resident models are unchanged".
 */
#pragma once

#include "tests/lib/daemon.h"
#include "tests/lib/model.h"

#include "streamer/client.h"

#include <jansson.h>

#define MIB (UINT64_C(1) << 20)

/* ---- a daemon with one resident model, shared by a group of tests ---- */

/* Set by fixture_begin(): the daemon, its root (a folder), and the model "witness" of about 1 MiB,
 * which every test of the group must leave as it is. */
extern struct daemon test_daemon;
extern struct model *fixture_witness;

/* Adds the root to `flags`; NULL flags: `--device host=256MiB`. */
void fixture_begin(const char *const *flags);
void fixture_begin_default(void); /* fixture_begin(NULL) */
/* Other models are evicted then. */
void fixture_pin_witness(void);
/* Unloads all models but the witness. Fails if that has changed, the daemon does not use what it used at
 * fixture_account(), or does not end with 0. */
void fixture_end(void);
const char *fixture_root(void);
/* "host", or its replacement (daemon_on_gpu). */
const char *fixture_device(void);
/* Put first in a test of host memory: skips it on a GPU. */
#define ABOUT_HOST_MEMORY()                                                                                            \
        do {                                                                                                           \
                if (daemon_on_gpu())                                                                                   \
                        SKIP("about host memory");                                                                     \
        } while (0)
/* A path in the root; never freed. */
char *fixture_path(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Writes a model into the root; returns its path. */
char *fixture_write(const struct model *m, const char *file);
/* Checks that the daemon answers and the witness is unchanged. */
void fixture_serves(void);
/* What the daemon uses now is what it has to use after each test; fixture_begin() calls it. */
void fixture_account(void);
/* Unloads all models but the witness. */
void fixture_unload_others(void);
/* As fixture_serves(), and waits until the daemon uses what it used at fixture_account() (account.h). All other clients
 * must be closed. */
void fixture_still_serves(void);

/* The daemon's own memory (process_own_memory) without its ring; 0 in a sanitizer build, whose shadow memory hides it.
 */
uint64_t fixture_memory(void);

/* The client of one test. fixture_connect() opens it; fixture_disconnect() closes it, and the daemon must still
 * serve. */
extern streamer_client *client;
void fixture_connect(void);
void fixture_disconnect(void);
/* Closes it and stops the daemon, which must end with 0: for a daemon that the test has started itself. */
void fixture_stop(void);

/* ---- clients; each fails with the library's own text where something does not go well ---- */

streamer_client *client_open(const struct daemon *d);
int client_socket(const streamer_client *c); /* to break its connection */
void client_ok(const streamer_client *c, int r, const char *what);
/* The result of a call must be this code, and the error contain `part`. */
void client_fails(const streamer_client *c, int r, int code, const char *part);

void client_load(streamer_client *c, const char *source, const char *name);
/* The load must fail with this code, and with `text` (NULL: any) in the error. */
void client_load_fails(streamer_client *c, const char *source, const char *name, int code, const char *text);
int client_load_result(streamer_client *c, const char *source, const char *name, char text[1024]);
int client_load_sha256(streamer_client *c, const char *source, const char *name, char text[1024]);
streamer_op *client_load_begin(streamer_client *c, const char *source, const char *name);
/* The same with options; sets struct_size. */
streamer_op *client_load_begin_with(streamer_client *c, streamer_load_opts opts);
/* Waits for the load and frees it; returns its outcome. */
int client_load_end(streamer_op *op);
/* Loads; returns the outcome, also of a request that is refused. */
int client_load_with(streamer_client *c, streamer_load_opts opts);
void client_unload(streamer_client *c, const char *name);
streamer_lease *client_attach(streamer_client *c, const char *name);
streamer_lease *client_attach_on(streamer_client *c, const char *name, const char *device);

/* Compares every tensor of the lease (name, dtype, shape, bytes, alignment, digest, contents) and their number. */
void lease_equals(streamer_lease *lease, const struct model *m);
/* Loads it, compares it, and unloads it. */
void client_load_equals(streamer_client *c, const char *source, const char *name, const struct model *m);
/* Attaches, compares with lease_equals() and the model's digest, and detaches. */
void client_equals(streamer_client *c, const char *name, const struct model *m);
/* Compares the replica on this device with lease_equals(). */
void client_equals_on(streamer_client *c, const char *name, const char *device, const struct model *m);

/* The reply as JSON, or NULL with *code. */
json_t *client_call(streamer_client *c, const char *verb, const char *args);
/* The model in the reply to `show`; never freed. */
const json_t *client_show(streamer_client *c, const char *name);
int client_call_code(streamer_client *c, const char *verb, const char *args);
uint64_t client_leases(streamer_client *c);                         /* in all */
uint64_t client_device_number(streamer_client *c, const char *key); /* of the first device in `status` */
uint64_t client_used(streamer_client *c);                           /* its bytes */
double client_metric(streamer_client *c, const char *series);       /* "NAME" or "NAME{label=\"value\"}" */
const char *client_state(streamer_client *c, const char *name);     /* "" if it is not listed; static */

/* The value at a path, "devices.0.used"; NULL if it is missing. */
json_t *json_at(const json_t *value, const char *path);
/* The same as a text or a number; "" or 0 if it is missing. */
const char *json_text(const json_t *value, const char *path);
uint64_t json_number(const json_t *value, const char *path);
/* The first object of the array whose member `key` is this text; NULL if there is none. */
json_t *json_find(const json_t *array, const char *key, const char *text);

/* Waits until `leases` leases exist / `used` bytes are in use. */
void client_wait_leases(streamer_client *c, uint64_t leases);
void client_wait_used(streamer_client *c, uint64_t used);
uint64_t client_host_cache(streamer_client *c); /* bytes used */
/* Waits until the host cache uses `bytes`: eviction and restore copy in the background. */
void client_wait_host_cache(streamer_client *c, uint64_t bytes);
