/* SPDX-License-Identifier: Apache-2.0
 *
 * The forms in which AWS's services return keys. Pure.
 */
#pragma once

#include "daemon/source/store/credential.h"

/* These return CREDENTIAL_FOUND or an error: STREAMER_EFAILED, STREAMER_ENOMEM. */

/* {"AccessKeyId", "SecretAccessKey", "Token", "Expiration"} of the container and instance endpoints. Changes the text.
 */
int aws_keys_parse_json(struct credential *keys, char *text, size_t size, const char *origin, struct error *error);
/* The response of STS to any of its actions. */
int aws_keys_parse_xml(struct credential *keys, const char *text, size_t size, const char *origin, struct error *error);
