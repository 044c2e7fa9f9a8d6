/* SPDX-License-Identifier: Apache-2.0
 *
 * The providers of credentials: the environment, the profile and its roles (profile.c), the endpoint of a container and
 * the metadata of an instance (metadata.c). Calls that take clients block, each for a bounded time.
 *
 * A provider returns 1 with keys, 0 if it is not configured, or an error.
 */
#pragma once

#include "daemon/io/http/http.h"
#include "daemon/source/aws/aws_config.h"
#include "daemon/source/aws/keys.h"

struct aws_clients {
        struct http *instance; /* its metadata answer within a second or two, or not at all */
        struct http *others;   /* waits longer: a container's endpoint may start together with the container */
};

/* Of `http` the certificates and the hosts that plain http is allowed to are used, for the others; NULL: none. */
int aws_clients_init(struct aws_clients *clients, const struct http_opts *http, struct error *error);
void aws_clients_stop(struct aws_clients *clients); /* calls end soon, with STREAMER_ECANCELED */
void aws_clients_deinit(struct aws_clients *clients);

/* ---- metadata.c ---- */

int aws_container(struct aws_clients *clients, struct aws_keys *keys, struct error *error);
/* Also 0 if nothing answers, with the reason in *why: most machines are no instances. */
int aws_instance(struct aws_clients *clients, struct aws_keys *keys, struct error *why, struct error *error);

/* ---- profile.c ---- */

int aws_environment(struct aws_keys *keys, struct error *error);
/* A role, a web identity or the keys of the profile, or before them, if `environment`, the environment's web identity.
 */
int aws_profile(struct aws_clients *clients, struct aws_keys *keys, const struct aws_config *config, bool environment,
                struct error *error);

/* ---- parts: for STS, and for the tests ---- */

/* One request; any status is a success, and the body is not NULL. */
int aws_fetch(struct http *http, struct http_fetch *fetch, struct error *error);

/* Where a container's credentials are; *uri NULL: not configured. malloc'd. Plain http is used for these hosts alone:
 * loopback and the addresses of ECS and EKS. */
int aws_container_uri(char **uri, struct error *error);
