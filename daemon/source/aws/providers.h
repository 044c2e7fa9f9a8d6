/* SPDX-License-Identifier: Apache-2.0
 *
 * The providers of credentials, tried along the chain that credentials.h describes.
 */
#pragma once

#include "daemon/io/http/http.h"
#include "daemon/source/aws/keys.h"

struct aws_clients {
        struct http *instance; /* its metadata answer within a second or two, or not at all */
        struct http *others;   /* waits longer: a container's endpoint may start together with the container */
};

/* Of `http` the certificates and the hosts that plain http is allowed to are used, for the others; NULL: none. */
int aws_clients_init(struct aws_clients *clients, const struct http_opts *http, struct error *error);
void aws_clients_stop(struct aws_clients *clients); /* calls end soon, with STREAMER_ECANCELED */
void aws_clients_deinit(struct aws_clients *clients);

/* AWS_KEYS or an error. Blocks, with each provider for a bounded time. `profile` NULL: AWS's variables name it. */
int aws_find_keys(struct aws_clients *clients, struct aws_keys *keys, const char *profile, struct error *error);

/* ---- for the tests ---- */

/* Where a container's credentials are; *uri NULL: not configured. malloc'd. Plain http is used for these hosts alone:
 * loopback and the addresses of ECS and EKS. */
int aws_container_uri(char **uri, struct error *error);
