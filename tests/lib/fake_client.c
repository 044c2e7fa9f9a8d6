/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/fake_client.h"

streamer_client *fake_connect(struct fake *f, void (*script)(struct fake *f))
{
        streamer_client *c;

        fake_start(f, script);
        streamer_connect_opts opts = {.struct_size = sizeof(opts), .socket = f->socket};
        int r = streamer_connect(&opts, &c);
        if (r < 0)
                die("%s", streamer_last_error(c));
        return c;
}

void fake_disconnect(struct fake *f, streamer_client *c)
{
        streamer_close(c);
        fake_finish(f);
}
