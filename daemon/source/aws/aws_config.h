/* SPDX-License-Identifier: Apache-2.0
 *
 * The files that AWS tools share, for one profile: ~/.aws/config ([default], [profile NAME], [services NAME]) and
 * ~/.aws/credentials ([NAME]). They hold secrets: errors do not quote them.
 */
#pragma once

#include "daemon/base/text/text.h"

enum aws_file { AWS_CONFIG, AWS_CREDENTIALS };

struct aws_entry {
        enum aws_file file;
        const char *section, *key, *value;
        const char *parent; /* the key that this one is nested in; NULL if in none */
};

struct aws_config {
        struct text texts[2]; /* by file */
        struct aws_entry *entries;
        size_t n;
        char *profile; /* NULL: the name could not be found in memory */
        bool named;    /* the settings or the environment name this profile, so it must exist */
};

/* The paths of AWS_CONFIG_FILE and AWS_SHARED_CREDENTIALS_FILE, else those below $HOME if they may be read.
 * `profile` NULL: AWS_PROFILE, else "default". STREAMER_EPERM: a named file may not be read. */
int aws_config_init(struct aws_config *config, const char *profile, struct error *error);
void aws_config_deinit(struct aws_config *config); /* accepts a zeroed one */
/* The part that reads one file, `name` in messages. It owns the text, also on failure. */
int aws_config_parse_consume(struct aws_config *config, enum aws_file file, struct text text, const char *name,
                             struct error *error);

/* A setting of the profile, or of a section nested in it ("s3.endpoint_url"); the credentials file has precedence.
 * NULL: none, or empty. */
const char *aws_config_get(const struct aws_config *config, const char *key);
/* The endpoint for a service ("s3", "sts"): its own in [services], else the profile's for all. */
const char *aws_config_endpoint(const struct aws_config *config, const char *service);
bool aws_config_has_profile(const struct aws_config *config);

/* An environment variable; NULL: unset or empty. */
const char *aws_env(const char *name);
