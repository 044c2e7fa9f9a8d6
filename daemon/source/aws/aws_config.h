/* SPDX-License-Identifier: Apache-2.0
 *
 * The files that AWS tools share: ~/.aws/config ([default], [profile NAME], [services NAME]) and ~/.aws/credentials
 * ([NAME]). They hold secrets: errors do not quote them.
 */
#pragma once

#include "daemon/base/text/text.h"

/* ---- one file ---- */

struct aws_ini_entry {
        const char *section, *key, *value;
        const char *parent; /* the key that this one is nested in; NULL if in none */
};

struct aws_ini {
        struct text text;
        struct aws_ini_entry *entries;
        size_t n;
};

/* Owns the text, also on failure. `name` is for messages. */
int aws_ini_init_consume(struct aws_ini *ini, struct text text, const char *name, struct error *error);
/* A missing file counts as empty. STREAMER_EPERM: it may not be read. */
int aws_ini_read(struct aws_ini *ini, const char *path, struct error *error);
void aws_ini_deinit(struct aws_ini *ini); /* accepts a zeroed one */

/* Of [KIND SECTION], or of [SECTION] if kind is NULL. NULL if there is none. A key of a nested section is
 * "s3.endpoint_url"; NULL: any. */
const char *aws_ini_get(const struct aws_ini *ini, const char *kind, const char *section, const char *key);

/* ---- both, for one profile ---- */

struct aws_config {
        struct aws_ini config, credentials;
        char *profile; /* NULL: the name could not be found in memory */
        bool named;    /* the settings or the environment name this profile, so it must exist */
};

/* The paths of AWS_CONFIG_FILE and AWS_SHARED_CREDENTIALS_FILE, else those below $HOME if they may be read.
 * `profile` NULL: AWS_PROFILE, else "default". */
int aws_config_init(struct aws_config *config, const char *profile, struct error *error);
void aws_config_deinit(struct aws_config *config); /* accepts a zeroed one */
/* A setting of the profile; the credentials file has precedence. */
const char *aws_config_get(const struct aws_config *config, const char *key);
/* The endpoint for a service ("s3", "sts"): its own in [services], else the profile's for all. */
const char *aws_config_endpoint(const struct aws_config *config, const char *service);
bool aws_config_has_profile(const struct aws_config *config);

/* An environment variable; NULL: unset or empty. */
const char *aws_env(const char *name);
