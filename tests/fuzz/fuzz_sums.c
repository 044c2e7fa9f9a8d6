/* SPDX-License-Identifier: Apache-2.0
 *
 * Published digests: a SHA256SUMS, and a store's checksum of an object. An accepted digest is in the text, with its
 * file's name.
 */
#include "daemon/source/s3/s3_reply.h"
#include "daemon/source/sums.h"
#include "tests/fuzz/fuzz.h"

static void fuzz_list(const uint8_t *data, size_t size)
{
        static char a[] = "fuzz/a", b[] = "fuzz/model.safetensors";
        struct object objects[] = {{.path = a}, {.path = b}};
        struct text text = {.data = fuzz_copy(data, size, 1), .size = size};
        struct error error = {0};
        bool taken = sums_apply(&text, "fuzz", objects, 2, &error) == 0;
        holds(taken || (error.code < 0 && error.text[0] != '\0'));
        for (size_t i = 0; i < 2; i++)
                holds(!objects[i].has_sha256 || memmem(data, size, strrchr(objects[i].path, '/') + 1,
                                                       strlen(strrchr(objects[i].path, '/') + 1)) != NULL);
        free(text.data);
}

static void fuzz_header(const uint8_t *data, size_t size)
{
        char hex[65], *value = fuzz_copy(data, size, 1);
        struct object object = {.path = value};
        struct error error = {0};
        if (s3_checksum_decode(value, hex)) {
                holds(strspn(hex, "0123456789abcdef") == 64 && hex[64] == '\0');
                holds(sums_set_digest(&object, hex, "fuzz", &error) == 0 && object.has_sha256);
        }
        object.has_sha256 = false;
        holds(sums_set_digest(&object, value, "fuzz", &error) == 0);
        free(value);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        fuzz_list(data, size);
        fuzz_header(data, size);
        return 0;
}
