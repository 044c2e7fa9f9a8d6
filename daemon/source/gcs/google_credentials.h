/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokens for Google Cloud Storage, found in the order of google-auth:
 *
 *   settings of the daemon                             (then nothing else is tried)
 *   RUNAI_STREAMER_GCS_CREDENTIAL_FILE, then GOOGLE_APPLICATION_CREDENTIALS
 *   application_default_credentials.json of gcloud     in $CLOUDSDK_CONFIG, else ~/.config/gcloud
 *   the metadata server                                of GCE, and of GKE's workload identity
 *
 * The first that is configured decides, also by failing: another one's token would have another one's rights.
 */
#pragma once

#include "daemon/io/http/http.h"
#include "daemon/source/store/renewal.h"

/* Borrowed until renewal_free(); NULL and "": not set. */
struct google_opts {
        const char *credentials; /* the JSON, "file:PATH", "credential:NAME", or a path */
        const char *quota_project;
        const char *const *token_hosts; /* that the files of workload identity federation may name, besides Google's */
        size_t n_token_hosts;
        bool is_emulator;             /* it is asked without a token, where none is configured */
        const struct http_opts *http; /* as service.h has it */
};

int google_credentials_new(struct renewal **renewal, const struct google_opts *opts, struct error *error);

/* The domain of Google's services: of the configured credentials, else GOOGLE_CLOUD_UNIVERSE_DOMAIN, else
 * googleapis.com. malloc'd. Reads a file; one that cannot be read is no error here. NULL: no memory. */
char *google_universe(const struct google_opts *opts);

/* An environment variable; NULL: unset or empty. */
const char *google_env(const char *name);
