/* SPDX-License-Identifier: Apache-2.0
 *
 * The record of a kept model, sealed and under a checksum that fits: two bytes are the manifest's size, then come
 * the manifest and the details. What is accepted can be read as far as it says.
 */
#include "daemon/base/fd.h"
#include "daemon/base/hash.h"
#include "daemon/resident/record.h"
#include "tests/fuzz/fuzz.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#define FOOT (32 + DIGEST_SIZE)

static int sealed(const unsigned char *bytes, size_t size)
{
        int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        holds(fd >= 0 && write(fd, bytes, size) == (ssize_t)size);
        holds(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) == 0);
        return fd;
}

static int record_of_bytes(const uint8_t *data, size_t size, uint64_t manifest_size)
{
        static const uint32_t version[2] = {1, 0};
        uint64_t sizes[2] = {manifest_size, size - manifest_size};
        unsigned char *record = malloc(size + FOOT), *foot = record + size;
        holds(record != NULL);
        memcpy(record, data, size);
        memcpy(foot, "strmrec1", 8);
        memcpy(foot + 8, version, sizeof(version));
        memcpy(foot + 16, sizes, sizeof(sizes));
        hash_bytes(record, size + FOOT - DIGEST_SIZE, foot + FOOT - DIGEST_SIZE);
        int fd = sealed(record, size + FOOT);
        free(record);
        return fd;
}

static void check(const struct record *record, const struct table *table, uint64_t manifest_size)
{
        uint64_t sum = 0;
        const char *why = NULL;
        struct manifest_view manifest = table_manifest(table);
        holds(record->name != NULL && record->source != NULL && record->origin.groups != NULL);
        holds(strlen(record->name) <= PROTO_NAME_MAX && strlen(record->device) < sizeof(record->device));
        holds(record->n_segments <= GENERATION_SEGMENTS && table->size == manifest_size);
        for (unsigned i = 0; i < record->n_segments; i++)
                sum += record->sizes[i];
        holds(sum <= record->charged);
        for (uint64_t i = 0; i < manifest.header->n_records; i++)
                holds(manifest_check(&manifest, i, &why) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        struct record record;
        struct table table = {.fd = -1};
        struct error error = {0};
        if (size < 2)
                return 0;
        uint64_t manifest_size = (uint64_t)data[0] | (uint64_t)data[1] << 8;
        if (manifest_size > size - 2)
                manifest_size = size - 2;
        int fd = record_of_bytes(data + 2, size - 2, manifest_size);
        if (record_read_consume_fd(&record, fd, &table, &error) == 0) {
                check(&record, &table, manifest_size);
                record_deinit(&record);
                table_drop(&table);
        } else {
                holds(error.code != 0 && error.text[0] != '\0');
                holds(record.name == NULL && table.fd == -1);
        }
        return 0;
}
