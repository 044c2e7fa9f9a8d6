/* SPDX-License-Identifier: Apache-2.0
 *
 * The texts of invalid arguments. Where the client itself is missing, the text is the calling thread's own,
 * as of a connect that failed.
 */
#include "client/args.h"

#include "client/channel.h"
#include "client/lease.h"
#include "client/util.h"

static struct fault *fault_of(const streamer_client *client)
{
        return client ? client->fault : NULL;
}

int args_pointer(const streamer_client *client, const char *call, const char *name, const void *pointer)
{
        return pointer ? 0 : fault_set(fault_of(client), STREAMER_EINVAL, "%s: '%s' is NULL", call, name);
}

int args_text(const streamer_client *client, const char *call, const char *name, const char *text)
{
        int rc = args_pointer(client, call, name, text);
        if (rc == 0 && text[0] == 0)
                rc = fault_set(fault_of(client), STREAMER_EINVAL, "%s: '%s' is empty", call, name);
        return rc;
}

int args_not_utf8(const streamer_client *client, const char *call, const char *source)
{
        cleanup_free char *shown = streamer_printable(source);
        return fault_set(fault_of(client), STREAMER_EINVAL, "%s: the source is not valid UTF-8: %s", call,
                         shown ? shown : "");
}

int args_client(const streamer_client *client, const char *call)
{
        return args_pointer(NULL, call, "client", client) ?: channel_check(client);
}

int args_lease(const streamer_lease *lease, const char *call)
{
        return args_pointer(NULL, call, "lease", lease) ?: lease_check(lease);
}

int args_flags(const streamer_client *client, const char *call, unsigned flags, unsigned all)
{
        if ((flags & ~all) == 0)
                return 0;
        return fault_set(fault_of(client), STREAMER_EINVAL, "%s: unknown flags 0x%x", call, flags & ~all);
}

/* ---- structs ---- */

static size_t size_of(const void *sized)
{
        size_t size;
        memcpy(&size, sized, sizeof(size));
        return size;
}

int args_out(const streamer_client *client, const char *call, const char *name, const void *out)
{
        int rc = args_pointer(client, call, name, out);
        if (rc == 0 && size_of(out) < sizeof(size_t))
                rc = fault_set(fault_of(client), STREAMER_EINVAL, "%s: the struct_size of '%s' is not set", call, name);
        return rc;
}

int args_copy(const streamer_client *client, const char *call, const char *name, void *to, size_t size,
              const void *from)
{
        int rc = args_out(client, call, name, from);
        if (rc != 0)
                return rc;
        size_t given = size_of(from);
        for (size_t i = size; i < given; i++)
                if (((const char *)from)[i] != 0)
                        return fault_set(fault_of(client), STREAMER_EINVAL,
                                         "%s: '%s' sets a member that this library (" STREAMERD_VERSION
                                         ") does not know: it is older than its caller",
                                         call, name);
        memset(to, 0, size);
        memcpy(to, from, given < size ? given : size);
        return 0;
}

int args_options(const streamer_client *client, const char *call, const char *name, void *to, size_t size,
                 const void *from)
{
        if (from)
                return args_copy(client, call, name, to, size, from);
        memset(to, 0, size);
        return 0;
}

void args_fill(void *out, const void *from, size_t size)
{
        size_t given = size_of(out);
        memset((char *)out + sizeof(given), 0, given - sizeof(given));
        memcpy((char *)out + sizeof(given), (const char *)from + sizeof(given),
               (given < size ? given : size) - sizeof(given));
}
