/* SPDX-License-Identifier: Apache-2.0
 *
 * hf://org/name[@rev]: a model of the Hugging Face Hub, or of an endpoint that speaks as it does.
 */
#ifndef DAEMON_SOURCE_HUB_H
#define DAEMON_SOURCE_HUB_H

#include "daemon/source/source.h"

struct hub_opts {
        const char *endpoint; /* NULL or "": https://huggingface.co */
        const char *token;    /* a value, "file:PATH" or "credential:NAME"; NULL or "": the stored one */
        const char *ca;       /* NULL: as http has it */
};

struct hub; /* shared by threads */

int hub_new(struct hub **hub, const struct hub_opts *opts, struct error *error);
struct hub *hub_free(struct hub *hub);

extern const struct source_ops source_hub;

#endif
