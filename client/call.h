/* SPDX-License-Identifier: Apache-2.0
 *
 * Any verb with JSON in and out.
 */
#pragma once

#include "client/channel.h"

#include <jansson.h>

/* Checks that the daemon supports the request, sends it, and puts the pages of a list together. May change `args`, an
 * object. 0 with *reply, which is the caller's. */
int call_json(streamer_client *c, const char *verb, json_t *args, json_t **reply);
