/* SPDX-License-Identifier: Apache-2.0
 *
 * What integration tests say all the time: connect, load, look, compare, and "the daemon still
 * serves and what was resident is unchanged".
 */
#ifndef TESTS_LIB_STAGE_H
#define TESTS_LIB_STAGE_H

#include "tests/lib/daemon.h"
#include "tests/lib/model.h"

#include "streamer/client.h"

#include <jansson.h>

/* ---- a daemon with one resident model, shared by a group of tests ---- */

/* Set by stage_begin(): the daemon, its root (a folder), and the model "witness" of about 1 MiB,
 * which every test of the group must leave as it is. */
extern struct daemon stage;
extern struct model *stage_witness;

/* NULL flags: `--device host=256MiB`; the root is added. */
void stage_begin(const char *const *flags);
/* Fails if the witness has changed or the daemon does not end with 0. */
void stage_end(void);
const char *stage_root(void);
/* "host", or what stands in for it (daemon_on_gpu). */
const char *stage_device(void);
/* First in a test of what host memory alone can do: nothing is left to see of it on a GPU. */
#define ABOUT_HOST_MEMORY()                                                                                            \
        do {                                                                                                           \
                if (daemon_on_gpu())                                                                                   \
                        return;                                                                                        \
        } while (0)
/* A path in the root; never freed. */
char *stage_path(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Writes a model there; its path. */
char *stage_write(const struct model *m, const char *file);
/* The daemon answers, the witness is there byte for byte and nothing leaks from test to test. */
void stage_still_serves(void);

/* The daemon's own memory (process_own_memory), without its ring; 0 in a sanitizer build, whose shadow
 * memory says nothing. */
uint64_t stage_memory(void);

/* ---- clients; each fails with the library's own text where something does not go well ---- */

streamer_client *client_open(const struct daemon *d);
void client_ok(const streamer_client *c, int r, const char *what);

void client_load(streamer_client *c, const char *source, const char *name);
/* The load must fail with this code, and with `text` (NULL: any) in what is said. */
void client_load_fails(streamer_client *c, const char *source, const char *name, int code, const char *text);
int client_load_result(streamer_client *c, const char *source, const char *name, char text[1024]);
int client_load_sha256(streamer_client *c, const char *source, const char *name, char text[1024]);
streamer_op *client_load_begin(streamer_client *c, const char *source, const char *name);
void client_unload(streamer_client *c, const char *name);
streamer_lease *client_attach(streamer_client *c, const char *name);

/* Every tensor of the lease: name, dtype, shape, bytes, alignment, digest, contents; and their number. */
void lease_equals(streamer_lease *lease, const struct model *m);
/* Attach, lease_equals and the model's digest, detach. */
void client_equals(streamer_client *c, const char *name, const struct model *m);

/* The reply as JSON, or NULL with *code. */
json_t *client_call(streamer_client *c, const char *verb, const char *args);
int client_call_code(streamer_client *c, const char *verb, const char *args);
uint64_t client_leases(streamer_client *c);                     /* in all */
uint64_t client_used(streamer_client *c);                       /* bytes of the first device */
double client_metric(streamer_client *c, const char *series);   /* "NAME" or "NAME{label=\"value\"}" */
const char *client_state(streamer_client *c, const char *name); /* "" if it is not there; static */

/* A member of what was said: "" and 0 where it is not there. */
const char *json_text(const json_t *object, const char *key);
uint64_t json_number(const json_t *object, const char *key);

/* Waits until only `leases` leases are left / until `used` bytes are. */
void client_wait_leases(streamer_client *c, uint64_t leases);
void client_wait_used(streamer_client *c, uint64_t used);

#endif
