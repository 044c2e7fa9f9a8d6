/* SPDX-License-Identifier: Apache-2.0
 *
 * One untrusted message, read as a request and as a reply. msgpack-c must unpack every message that the walk accepts; a
 * request must equal its own encoding; a reply must become JSON unless its text is not UTF-8.
 */
#include "client/json.h"
#include "proto/codec.h"
#include "tests/fuzz/fuzz.h"

static void encode(const struct request *request, msgpack_sbuffer *out)
{
        msgpack_sbuffer_init(out);
        holds(request_encode(request, out) == 0);
}

static void as_request(const uint8_t *data, size_t size)
{
        char text[200];
        struct request first, second;
        msgpack_sbuffer once, twice;
        text[0] = 0;
        if (request_decode(&first, data, size, text, sizeof(text)) != 0) {
                holds(text[0] != 0 && codec_utf8(text, strlen(text)));
                return;
        }
        encode(&first, &once);
        holds(request_decode(&second, once.data, once.size, text, sizeof(text)) == 0);
        encode(&second, &twice);
        holds(once.size == twice.size && memcmp(once.data, twice.data, once.size) == 0);
        msgpack_sbuffer_destroy(&once);
        msgpack_sbuffer_destroy(&twice);
        request_deinit(&first);
        request_deinit(&second);
}

static void as_reply(const uint8_t *data, size_t size)
{
        const char *why;
        struct message message;
        bool formed = codec_check(data, size, &why) == 0;
        int rc = message_decode(&message, data, size);
        holds(rc != 0 || formed);
        if (rc != 0)
                return;
        object_get(&message.unpacked.data, "segments");
        json_decref(json_from_object(&message.unpacked.data));
        message_deinit(&message);
}

/* Any value that the walk lets pass, map or not, inside a map of one. */
static void as_value(const uint8_t *data, size_t size)
{
        const char *why;
        struct message message;
        if (size > 4096 || codec_check(data, size, &why) != 0)
                return;
        uint8_t wrapped[4096 + 3] = {0x81, 0xa1, 'v'};
        memcpy(wrapped + 3, data, size);
        if (codec_check(wrapped, size + 3, &why) != 0)
                return; /* one level too deep */
        holds(message_decode(&message, wrapped, size + 3) == 0);
        message_deinit(&message);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        as_request(data, size);
        as_reply(data, size);
        as_value(data, size);
        return 0;
}
