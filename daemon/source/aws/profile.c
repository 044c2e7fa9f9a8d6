/* SPDX-License-Identifier: Apache-2.0
 *
 * A profile with a role names the credentials to assume it with:
 *
 *   role_arn + source_profile     keys of that profile > AssumeRole > keys of the role
 *   role_arn + credential_source  keys of the environment, the container or the instance > the same
 *
 * Refused with a message that names them: a source_profile without keys of its own, such as another role;
 * credential_process (the daemon runs no programs that a file names), SSO and mfa_serial (which need a person).
 */
#include "daemon/source/aws/providers.h"

#include "daemon/base/util.h"

/* ---- static keys ---- */

/* Both keys, or neither. `names`: of the two settings. */
static int keys_of_pair(struct aws_keys *keys, const char *access, const char *secret, const char *token,
                        const char *origin, const char *names, struct error *error)
{
        if (access == NULL && secret == NULL)
                return 0;
        if (access == NULL || secret == NULL)
                return error_set(error, STREAMER_EPERM, "%s: of %s one is set without the other", origin, names);
        int r = aws_keys_init(keys, access, secret, token, origin, error);
        return r < 0 ? r : 1;
}

int aws_environment(struct aws_keys *keys, struct error *error)
{
        return keys_of_pair(keys, aws_env("AWS_ACCESS_KEY_ID"), aws_env("AWS_SECRET_ACCESS_KEY"),
                            aws_env("AWS_SESSION_TOKEN"), "environment", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
                            error);
}

static int static_keys(struct aws_keys *keys, const struct aws_config *config, struct error *error)
{
        char origin[160];
        snprintf(origin, sizeof(origin), "profile '%.120s'", config->profile);
        return keys_of_pair(keys, aws_config_get(config, "aws_access_key_id"),
                            aws_config_get(config, "aws_secret_access_key"),
                            aws_config_get(config, "aws_session_token"), origin,
                            "aws_access_key_id and aws_secret_access_key", error);
}

/* Settings that need a program or a person. */
static int refuse_unsupported(const struct aws_config *config, struct error *error)
{
        static const char *const settings[] = {"credential_process", "sso_session", "sso_start_url"};
        for (size_t i = 0; i < ARRAY_SIZE(settings); i++)
                if (aws_config_get(config, settings[i]) != NULL)
                        return error_set(error, STREAMER_EUNSUPPORTED,
                                         "profile '%s' has %s, which is not supported: keys, and role_arn with "
                                         "source_profile, credential_source or web_identity_token_file, are",
                                         config->profile, settings[i]);
        return 0;
}

/* ---- roles ---- */

/* An unknown text of the file is not repeated: it may be anything. */
static int keys_of_source(struct aws_clients *clients, struct aws_keys *keys, const char *source, struct error *error)
{
        struct error why = {.code = 0};
        int r;
        if (strcmp(source, "Environment") == 0)
                r = aws_environment(keys, error);
        else if (strcmp(source, "EcsContainer") == 0)
                r = aws_container(clients, keys, error);
        else if (strcmp(source, "Ec2InstanceMetadata") == 0)
                r = aws_instance(clients, keys, &why, error);
        else
                return error_set(error, STREAMER_EFAILED,
                                 "credential_source is none of Environment, EcsContainer and Ec2InstanceMetadata");
        return r
                       ?: error_set(error, STREAMER_EPERM, "credential_source %s has no credentials%s%s", source,
                                    why.code != 0 ? ": " : "", why.text);
}

/* A profile that another one names, or itself. */
static int keys_of_profile(struct aws_keys *keys, const struct aws_config *named_by, const char *name,
                           struct error *error)
{
        struct aws_config config = *named_by; /* the same files */
        config.profile = (char *)(uintptr_t)name;
        if (!aws_config_has_profile(&config))
                return error_set(error, STREAMER_EPERM,
                                 "source_profile '%s' of profile '%s' is in none of the shared files", name,
                                 named_by->profile);
        return static_keys(keys, &config, error) ?: refuse_unsupported(&config, error)
                      ?: error_set(error, STREAMER_EPERM,
                                  "source_profile '%s' has no keys (aws_access_key_id), and roles are not chained",
                                  name);
}

static int keys_of_role(struct aws_clients *clients, struct aws_keys *keys, const struct aws_config *config,
                        struct error *error)
{
        const char *profile = aws_config_get(config, "source_profile");
        const char *source = aws_config_get(config, "credential_source");
        cleanup_with(aws_keys_deinit) struct aws_keys signer = {.access = NULL};
        if (aws_config_get(config, "role_arn") == NULL)
                return 0;
        if (profile == NULL && source == NULL) {
                if (aws_config_get(config, "web_identity_token_file") != NULL)
                        return 0;
                /* Static keys of the profile are not used: it asks for a role. */
                return refuse_unsupported(config, error)
                               ?: error_set(error, STREAMER_EFAILED,
                                            "profile '%s' has role_arn without source_profile, credential_source or "
                                            "web_identity_token_file",
                                            config->profile);
        }
        if (profile != NULL && source != NULL)
                return error_set(error, STREAMER_EFAILED, "profile '%s' has source_profile and credential_source",
                                 config->profile);
        if (aws_config_get(config, "mfa_serial") != NULL)
                return error_set(error, STREAMER_EUNSUPPORTED, "profile '%s' has mfa_serial, which is not supported",
                                 config->profile);
        int r = profile != NULL ? keys_of_profile(&signer, config, profile, error)
                                : keys_of_source(clients, &signer, source, error);
        return r == 1 ? aws_assume_role(clients, keys, config, &signer, error) : r;
}

int aws_profile(struct aws_clients *clients, struct aws_keys *keys, const struct aws_config *config,
                struct error *error)
{
        if (config->named && !aws_config_has_profile(config))
                return error_set(error, STREAMER_EPERM, "profile '%s' is in none of the shared files", config->profile);
        return keys_of_role(clients, keys, config, error) ?: static_keys(keys, config, error)
                       ?: refuse_unsupported(config, error);
}
