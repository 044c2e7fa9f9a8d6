/* SPDX-License-Identifier: Apache-2.0
 *
 * The services that hand out credentials: the endpoint of a container, the metadata of an instance, and
 * STS (aws_sts.h). All calls block, each for a bounded time.
 */
#ifndef DAEMON_SOURCE_AWS_SERVICES_H
#define DAEMON_SOURCE_AWS_SERVICES_H

#include "daemon/io/http.h"
#include "daemon/source/aws_keys.h"

struct aws_services {
        struct http *near;      /* an instance's metadata: answer within a second or two, or not at all */
        struct http *container; /* is there where it is named, and may take its time when the container begins */
        struct http *far;       /* STS: plain http where it is allowed to others */
};

/* Of `http` count the hosts that plain http is allowed to, and the certificates; NULL: none. */
int aws_services_init(struct aws_services *services, const struct http_opts *http, struct error *error);
void aws_services_stop(struct aws_services *services); /* calls end soon, with STREAMER_ECANCELED */
void aws_services_deinit(struct aws_services *services);

/* Each answers 1 with keys, 0 where it is not set up here, or an error. */
int aws_container(struct aws_services *services, struct aws_keys *keys, struct error *error);
/* Also 0 where nothing answers, with the reason in *why: most machines are no instances. */
int aws_instance(struct aws_services *services, struct aws_keys *keys, struct error *why, struct error *error);

/* ---- parts: for STS, and for the tests ---- */

/* One request; its answer of 200 is a success, any other status is the caller's to read. */
int aws_ask(struct http *http, struct http_fetch *fetch, struct error *error);
/* What a token file holds: a secret. */
int aws_read_token(const char *path, char **token, struct error *error);

/* Where a container's credentials are; *uri NULL where that is not set. malloc'd. Over plain http, and
 * with the token it takes, these hosts alone are asked: loopback and the addresses of ECS and EKS. */
int aws_container_uri(char **uri, struct error *error);

#endif
