/* SPDX-License-Identifier: Apache-2.0
 *
 * Accounts and credentials for Azure Blob Storage. The first of these that is configured decides, also by failing:
 *
 *   settings of the daemon                        those of the source, else those for all
 *   AZURE_SKIP_SIGNATURE                          anonymous
 *   AZURE_STORAGE_CONNECTION_STRING               with a SAS, or the account's key
 *   AZURE_STORAGE_SAS_TOKEN, _ACCOUNT_KEY         the same as variables of their own
 *   AZURE_TENANT_ID, _CLIENT_ID, _CLIENT_SECRET   a client's secret
 *   ..., AZURE_FEDERATED_TOKEN_FILE               workload identity of AKS
 *   AZURE_STORAGE_TOKEN                           a bearer token
 *   managed identity                              IDENTITY_ENDPOINT (App Service, Arc), MSI_ENDPOINT (Machine
 *                                                 Learning), else the metadata service
 */
#pragma once

#include "daemon/io/http/http.h"
#include "daemon/source/store/renewal.h"

/* The settings of one source, or of all others; NULL and "": not set. Secrets are values, "file:PATH" or
 * "credential:NAME". */
struct azure_opts {
        char *source; /* "az://container/prefix", or with the account's host */
        char *account, *endpoint;
        char *connection_string, *sas_token, *account_key, *token;
        char *tenant_id, *client_id, *client_secret, *federated_token_file, *authority_host;
        bool is_anonymous;
        bool is_authorized; /* of a source: with credentials, even if requests for other sources have none */
};

/* What is in effect for a source: of settings and variables. Borrowed texts. */
struct azure_config {
        const char *account, *endpoint, *suffix; /* NULL: not configured */
        struct azure_opts opts;                  /* the credentials alone, all from one place */
        const char *where;                       /* "settings", "environment" */
};
void azure_config_init(struct azure_config *config, const struct azure_opts *own, const struct azure_opts *defaults);

/* The account that sources without a host are of, and its endpoint without a '/' at its end. STREAMER_EFAILED: the
 * connection string is not valid, or there is no account. */
struct azure_account {
        char *name, *endpoint;
        bool is_configured; /* the endpoint; else it is that of all accounts */
};
int azure_account_init(struct azure_account *account, const struct azure_config *config, struct error *error);
void azure_account_deinit(struct azure_account *account); /* accepts a zeroed one */

/* Borrows the config's texts until renewal_free(). `http` as service.h has it. */
int azure_credentials_new(struct renewal **renewal, const struct azure_config *config, const struct http_opts *http,
                          struct error *error);

/* ---- for the tests ---- */

/* "A=b;C=d": the value of a name, in any case; malloc'd. *value NULL: there is none. STREAMER_ENOMEM. */
int azure_connection_get(const char *text, const char *name, char **value, struct error *error);

/* The expiry of a SAS (se); 0: it names none. */
time_t azure_sas_expires(const char *sas);

/* Where the secret of Azure Arc is: of 'Basic realm=FILE'. *path is malloc'd. STREAMER_EPERM: another place than the
 * agent's. */
int azure_arc_secret(const char *challenge, char **path, struct error *error);
