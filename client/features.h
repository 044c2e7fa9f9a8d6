/* SPDX-License-Identifier: Apache-2.0
 *
 * What the daemon supports, as its reply to "hello" lists it: a feature is a verb ("load") or a field of a verb
 * ("load.pattern"). The library sends nothing else; the error says which side is older.
 */
#pragma once

#include "proto/messages.h"

#include <stddef.h>

struct streamer_client;

/* All with the client's lock held. 0, or STREAMER_EUNSUPPORTED with its text. Until the daemon has replied to hello:
 * 0, and the daemon refuses what it does not support. */

int features_check(const struct streamer_client *c, const struct request *request);

/* Of a verb, and of one of its fields unless that is NULL. */
int features_check_field(const struct streamer_client *c, const char *verb, const char *field);
