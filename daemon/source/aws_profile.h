/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys by a profile of the shared files: its own, or those of a role that others' keys are good for.
 */
#ifndef DAEMON_SOURCE_AWS_PROFILE_H
#define DAEMON_SOURCE_AWS_PROFILE_H

#include "daemon/source/aws_config.h"
#include "daemon/source/aws_services.h"

/* Both: 1 with keys, 0 where there are none, or an error. */
int aws_environment(struct aws_keys *keys, struct error *error);
int aws_profile(struct aws_services *services, struct aws_keys *keys, const struct aws_config *config,
                struct error *error);

#endif
