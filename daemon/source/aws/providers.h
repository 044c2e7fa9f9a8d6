/* SPDX-License-Identifier: Apache-2.0
 *
 * The providers of credentials: the environment and the profile (profile.c), STS (sts.c), the endpoint of a container
 * and the metadata of an instance (metadata.c). Calls that take services block, each for a bounded time.
 */
#ifndef DAEMON_SOURCE_AWS_PROVIDERS_H
#define DAEMON_SOURCE_AWS_PROVIDERS_H

#include "daemon/io/http/http.h"
#include "daemon/source/aws/aws_config.h"
#include "daemon/source/aws/keys.h"

struct aws_metadata {
        struct http *near;      /* an instance's metadata: answer within a second or two, or not at all */
        struct http *container; /* is there where it is named, and may take its time when the container begins */
        struct http *far;       /* STS: plain http where it is allowed to others */
};

/* Of `http` count the hosts that plain http is allowed to, and the certificates; NULL: none. */
int aws_metadata_init(struct aws_metadata *services, const struct http_opts *http, struct error *error);
void aws_metadata_stop(struct aws_metadata *services); /* calls end soon, with STREAMER_ECANCELED */
void aws_metadata_deinit(struct aws_metadata *services);

/* ---- metadata.c ---- */

/* Each answers 1 with keys, 0 where it is not set up here, or an error. */
int aws_container(struct aws_metadata *services, struct aws_keys *keys, struct error *error);
/* Also 0 where nothing answers, with the reason in *why: most machines are no instances. */
int aws_instance(struct aws_metadata *services, struct aws_keys *keys, struct error *why, struct error *error);

/* ---- profile.c ---- */

/* Both: 1 with keys, 0 where there are none, or an error. */
int aws_environment(struct aws_keys *keys, struct error *error);
int aws_profile(struct aws_metadata *services, struct aws_keys *keys, const struct aws_config *config,
                struct error *error);

/* ---- sts.c ---- */

/* 1 with keys, 0 where neither the environment nor the profile has one, or an error. */
int aws_web_identity(struct aws_metadata *services, struct aws_keys *keys, const struct aws_config *config,
                     struct error *error);
/* The same of the profile alone. */
int aws_web_identity_of_profile(struct aws_metadata *services, struct aws_keys *keys, const struct aws_config *config,
                                struct error *error);

/* 1 with keys for the profile's role_arn, asked for with the keys `by`; or an error. */
int aws_assume_role(struct aws_metadata *services, struct aws_keys *keys, const struct aws_config *config,
                    const struct aws_keys *by, struct error *error);

/* ---- parts: for STS, and for the tests ---- */

/* One request; its answer of 200 is a success, any other status is the caller's to read. */
int aws_fetch(struct http *http, struct http_fetch *fetch, struct error *error);
/* What a token file holds: a secret. */
int aws_read_token(const char *path, char **token, struct error *error);

/* Where a container's credentials are; *uri NULL where that is not set. malloc'd. Over plain http, and
 * with the token it takes, these hosts alone are asked: loopback and the addresses of ECS and EKS. */
int aws_container_uri(char **uri, struct error *error);

#endif
