/* SPDX-License-Identifier: Apache-2.0
 *
 * A state file's body, under a head that fits it: what is accepted is written again as it was read.
 */
#include "daemon/base/hash.h"
#include "daemon/resident/state.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

#define HEAD (24 + DIGEST_SIZE)

/* Magic, version, length and checksum. */
static unsigned char *with_head(const uint8_t *body, size_t size)
{
        static const uint32_t version[2] = {1, 0};
        uint64_t length = size;
        unsigned char *file = malloc(HEAD + size);
        holds(file != NULL);
        memcpy(file, "strmsta1", 8);
        memcpy(file + 8, version, sizeof(version));
        memcpy(file + 16, &length, sizeof(length));
        hash_bytes(body, size, file + 24);
        if (size > 0)
                memcpy(file + HEAD, body, size);
        return file;
}

static void check_models(const struct state *state)
{
        for (size_t i = 0; i < state->n; i++) {
                const struct state_model *m = &state->models[i];
                holds(m->name != NULL && m->source != NULL && m->origin.groups != NULL);
                holds(m->n_devices > 0 && m->n_devices <= STATE_DEVICES);
                holds(m->priority <= PROTO_PRIORITY_MAX && m->origin.n_groups <= ORIGIN_GROUPS);
        }
}

static void write_again(const struct state *state)
{
        struct state again;
        struct error error = {0};
        msgpack_sbuffer first, second;
        holds(state_pack(state, &first) == 0);
        holds(state_unpack(&again, first.data, first.size, &error) == 0);
        holds(again.n == state->n && again.last_number == state->last_number);
        holds(state_pack(&again, &second) == 0);
        holds(first.size == second.size && memcmp(first.data, second.data, first.size) == 0);
        msgpack_sbuffer_destroy(&first);
        msgpack_sbuffer_destroy(&second);
        state_deinit(&again);
}

static void check(const void *file, size_t size)
{
        struct state state;
        struct error error = {0};
        if (state_unpack(&state, file, size, &error) == 0) {
                check_models(&state);
                write_again(&state);
                state_deinit(&state);
        } else {
                holds(error.code == STREAMER_ECORRUPT && error.text[0] != '\0');
                holds(state.models == NULL && state.n == 0);
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        unsigned char *file = with_head(data, size);
        check(file, HEAD + size);
        free(file);
        check(data, size); /* and as it is */
        return 0;
}
