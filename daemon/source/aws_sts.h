/* SPDX-License-Identifier: Apache-2.0
 *
 * STS, which gives out sessions: for a role, to who shows a token of an identity, or keys.
 */
#ifndef DAEMON_SOURCE_AWS_STS_H
#define DAEMON_SOURCE_AWS_STS_H

#include "daemon/source/aws_config.h"
#include "daemon/source/aws_services.h"

/* 1 with keys, 0 where neither the environment nor the profile has one, or an error. */
int aws_web_identity(struct aws_services *services, struct aws_keys *keys, const struct aws_config *config,
                     struct error *error);
/* The same of the profile alone. */
int aws_web_identity_of_profile(struct aws_services *services, struct aws_keys *keys, const struct aws_config *config,
                                struct error *error);

/* 1 with keys for the profile's role_arn, asked for with the keys `by`; or an error. */
int aws_assume_role(struct aws_services *services, struct aws_keys *keys, const struct aws_config *config,
                    const struct aws_keys *by, struct error *error);

#endif
