/* SPDX-License-Identifier: Apache-2.0
 *
 * The commit record of a persisted model, sealed and with a valid checksum: two bytes are the manifest's size, then
 * follow the manifest and the details. An accepted record can be read within its bounds.
 */
#include "daemon/base/text/text.h"
#include "daemon/resident/persist/commit_record.h"
#include "tests/fuzz/fuzz.h"

#include <fcntl.h>
#include <sys/mman.h>

static int record_of_bytes(const uint8_t *data, size_t size, size_t manifest_size)
{
        msgpack_sbuffer details;
        int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        msgpack_sbuffer_init(&details);
        if (size > manifest_size)
                holds(msgpack_sbuffer_write(&details, (const char *)data + manifest_size, size - manifest_size) == 0);
        holds(record_seal(&details, data, manifest_size, "strmrec2") == 0);
        holds(write(fd, data, manifest_size) == (ssize_t)manifest_size);
        holds(write(fd, details.data, details.size) == (ssize_t)details.size);
        holds(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) == 0);
        msgpack_sbuffer_destroy(&details);
        return fd;
}

static void check_record(const struct commit_record *record)
{
        holds(record->name != NULL && record->source != NULL && record->device != NULL);
        holds(strlen(record->name) <= PROTO_NAME_MAX && strlen(record->device) < 64);
        holds(record->n_segments <= GENERATION_SEGMENTS);
}

static void check_generation(const struct commit_record *record, const struct generation *g, uint64_t manifest_size)
{
        uint64_t sum = 0;
        const char *why = NULL;
        struct manifest_view manifest = table_manifest(&g->manifest);
        holds(g->manifest.size == manifest_size && record->manifest_size == manifest_size);
        for (unsigned i = 0; i < record->n_segments; i++)
                sum += record->segments[i].size;
        holds(sum <= record->charged);
        for (uint64_t i = 0; i < manifest.header->n_records; i++)
                holds(manifest_check(&manifest, i, &why) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        struct commit_record record;
        struct generation g = {.manifest.fd = -1};
        struct error error = {0};
        if (size < 2)
                return 0;
        uint64_t manifest_size = (uint64_t)data[0] | (uint64_t)data[1] << 8;
        if (manifest_size > size - 2)
                manifest_size = size - 2;
        int r = commit_record_open_consume_fd(&record, record_of_bytes(data + 2, size - 2, manifest_size), &error);
        if (r == 0) {
                check_record(&record);
                r = commit_record_restore(&record, &g, &error);
        }
        if (r == 0)
                check_generation(&record, &g, manifest_size);
        else
                holds(error.code != 0 && error.text[0] != '\0' && g.manifest.fd == -1);
        commit_record_deinit(&record);
        table_drop(&g.manifest);
        published_free(g.published);
        encryption_free(g.encryption);
        free(g.pattern);
        return 0;
}
