/* SPDX-License-Identifier: Apache-2.0
 *
 * The providers of credentials, tried along the chain that aws_credentials.h describes.
 */
#pragma once

#include "daemon/source/store/credential.h"
#include "daemon/source/store/service.h"

/* As service_clients_init(), with the limits that AWS's variables set. */
int aws_clients_init(struct service_clients *clients, const struct http_opts *http, struct error *error);

/* CREDENTIAL_FOUND or an error. Blocks, with each provider for a bounded time. `profile` NULL: AWS's variables name it.
 */
int aws_find_keys(struct service_clients *clients, struct credential *keys, const char *profile, struct error *error);

/* ---- for the tests ---- */

/* Where a container's credentials are; *uri NULL: not configured. malloc'd. Plain http is used for these hosts alone:
 * loopback and the addresses of ECS and EKS. */
int aws_container_uri(char **uri, struct error *error);
