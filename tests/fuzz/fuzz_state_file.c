/* SPDX-License-Identifier: Apache-2.0
 *
 * A state file's map, before a matching checksum: an accepted one is written again as it was read.
 */
#include "daemon/resident/persist/state_file.h"
#include "tests/fuzz/fuzz.h"

static void check_models(const struct state_file *state)
{
        for (size_t i = 0; i < state->n; i++) {
                const struct model_record *m = &state->models[i];
                holds(m->name != NULL && m->source != NULL);
                holds(m->n_devices > 0 && m->n_devices <= MODEL_RECORD_DEVICES);
                holds(m->settings.priority <= PROTO_PRIORITY_MAX && m->caller.n_groups <= CALLER_GROUPS);
        }
}

static void should_retry(const struct state_file *state)
{
        struct state_file again;
        struct error error = {0};
        msgpack_sbuffer first, second;
        holds(state_file_pack(state, &first) == 0);
        holds(state_file_unpack(&again, first.data, first.size, &error) == 0);
        holds(again.n == state->n && again.last_number == state->last_number);
        holds(state_file_pack(&again, &second) == 0);
        holds(first.size == second.size && memcmp(first.data, second.data, first.size) == 0);
        msgpack_sbuffer_destroy(&first);
        msgpack_sbuffer_destroy(&second);
        state_file_deinit(&again);
}

static void check(const void *file, size_t size)
{
        struct state_file state;
        struct error error = {0};
        if (state_file_unpack(&state, file, size, &error) == 0) {
                check_models(&state);
                should_retry(&state);
                state_file_deinit(&state);
        } else {
                holds(error.code == STREAMER_ECORRUPT && error.text[0] != '\0');
                holds(state.models == NULL && state.n == 0);
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        msgpack_sbuffer file;
        msgpack_sbuffer_init(&file);
        holds(size == 0 || msgpack_sbuffer_write(&file, (const char *)data, size) == 0);
        holds(record_seal(&file, NULL, 0, "strmsta2") == 0);
        check(file.data, file.size);
        msgpack_sbuffer_destroy(&file);
        check(data, size); /* and unchanged */
        return 0;
}
