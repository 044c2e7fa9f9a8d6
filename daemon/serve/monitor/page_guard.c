/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/monitor/page_guard.h"

#include "daemon/base/log/log.h"
#include "daemon/base/text/secret.h"
#include "daemon/base/text/text.h"
#include "daemon/base/util.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <sys/stat.h>

#define TOKENS_MAX 16
#define TOKEN_FILE_MAX (64 * KiB)
#define TOKEN_LEAST 16 /* characters */
#define DIGEST_SIZE 32 /* SHA-256 */

enum { CERTIFICATE, KEY, CLIENT_CA, TOKEN_FILE, FILES };
static const char *const settings[FILES] = {"metrics.certificate", "metrics.key", "metrics.client_ca",
                                            "metrics.token_file"};

/* What tells one version of a file from the next; zeros where there is none. */
struct version {
        dev_t dev;
        ino_t ino;
        off_t size;
        struct timespec mtime, ctime;
};

/* What the files say. */
struct material {
        SSL_CTX *tls; /* NULL: none */
        bool has_ca;
        unsigned char tokens[TOKENS_MAX][DIGEST_SIZE]; /* the digest of each, which has one length */
        size_t n_tokens;
};

struct page_guard {
        char *files[FILES]; /* NULL: not configured */
        struct version versions[FILES];
        struct material material;
};

static void material_deinit(struct material *m)
{
        SSL_CTX_free(m->tls);
        explicit_bzero(m, sizeof(*m));
}

/* ---- reading ---- */

/* The oldest error of OpenSSL is the cause of the others. */
static int tls_error(struct error *error, const struct page_guard *guard, int file)
{
        unsigned long code = ERR_peek_error();
        const char *reason =
                ERR_SYSTEM_ERROR(code) ? strerror((int)ERR_GET_REASON(code)) : ERR_reason_error_string(code);
        error_set(error, STREAMER_EFAILED, "%s: it cannot be used: %s (%s)", settings[file], reason ?: "no reason",
                  guard->files[file]);
        ERR_clear_error();
        return error->code;
}

/* Without it OpenSSL would ask at the terminal. */
static int no_passphrase(char *buffer, int size, int writing, void *context)
{
        return -1;
}

static int read_tls(const struct page_guard *guard, struct material *m, struct error *error)
{
        const char *ca = guard->files[CLIENT_CA];
        ERR_clear_error();
        SSL_CTX *tls = m->tls = SSL_CTX_new(TLS_server_method());
        if (tls == NULL || SSL_CTX_set_min_proto_version(tls, TLS1_2_VERSION) != 1) {
                ERR_clear_error();
                return error_no_memory(error);
        }
        /* Each connection is one request: nothing is resumed, and no client starts a second handshake. */
        SSL_CTX_set_options(tls, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
        SSL_CTX_set_session_cache_mode(tls, SSL_SESS_CACHE_OFF);
        SSL_CTX_set_mode(tls, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
        SSL_CTX_set_default_passwd_cb(tls, no_passphrase);
        if (SSL_CTX_use_certificate_chain_file(tls, guard->files[CERTIFICATE]) != 1)
                return tls_error(error, guard, CERTIFICATE);
        if (SSL_CTX_use_PrivateKey_file(tls, guard->files[KEY], SSL_FILETYPE_PEM) != 1 ||
            SSL_CTX_check_private_key(tls) != 1)
                return tls_error(error, guard, KEY);
        if (ca == NULL)
                return 0;
        STACK_OF(X509_NAME) *names = SSL_load_client_CA_file(ca);
        if (names == NULL || SSL_CTX_load_verify_file(tls, ca) != 1) {
                sk_X509_NAME_pop_free(names, X509_NAME_free);
                return tls_error(error, guard, CLIENT_CA);
        }
        SSL_CTX_set_client_CA_list(tls, names);
        /* A client may do without, for the pages that anyone may read; an invalid certificate ends the handshake. */
        SSL_CTX_set_verify(tls, SSL_VERIFY_PEER, NULL);
        m->has_ca = true;
        return 0;
}

/* False: no memory. */
static bool digest(unsigned char out[DIGEST_SIZE], const char *token)
{
        unsigned size;
        return EVP_Digest(token, strlen(token), out, &size, EVP_sha256(), NULL) == 1;
}

static int read_tokens(const struct page_guard *guard, struct material *m, struct error *error)
{
        cleanup_with(secret_text_deinit) struct text text = {0};
        const char *path = guard->files[TOKEN_FILE];
        struct error cause;
        cleanup_free char *setting = format_new("file:%s", path);
        if (setting == NULL)
                return error_no_memory(error);
        if (secret_read_text(setting, TOKEN_FILE_MAX, &text, &cause) < 0)
                return error_set(error, STREAMER_EFAILED, "%s: %s", settings[TOKEN_FILE], cause.text);
        for (char *next = text.data; next != NULL;) {
                char *token = strsep(&next, "\r\n");
                if (token[0] == '\0')
                        continue;
                if (strlen(token) < TOKEN_LEAST || strpbrk(token, " \t") != NULL)
                        return error_set(error, STREAMER_EFAILED,
                                         "%s: a token has a space, or fewer than %d characters (%s)",
                                         settings[TOKEN_FILE], TOKEN_LEAST, path);
                if (m->n_tokens == TOKENS_MAX)
                        return error_set(error, STREAMER_EFAILED, "%s: more than %d tokens (%s)", settings[TOKEN_FILE],
                                         TOKENS_MAX, path);
                if (!digest(m->tokens[m->n_tokens], token))
                        return error_no_memory(error);
                m->n_tokens++;
        }
        return m->n_tokens > 0 ? 0
                               : error_set(error, STREAMER_EFAILED, "%s: no token (%s)", settings[TOKEN_FILE], path);
}

/* The versions first: what changes while it is read is read once more. */
static bool look(const struct page_guard *guard, struct version versions[FILES])
{
        memset(versions, 0, FILES * sizeof(*versions));
        for (int i = 0; i < FILES; i++) {
                struct stat st;
                if (guard->files[i] == NULL || stat(guard->files[i], &st) < 0)
                        continue;
                versions[i].dev = st.st_dev;
                versions[i].ino = st.st_ino;
                versions[i].size = st.st_size;
                versions[i].mtime = st.st_mtim;
                versions[i].ctime = st.st_ctim;
        }
        return memcmp(versions, guard->versions, sizeof(guard->versions)) != 0;
}

static int read_files(const struct page_guard *guard, struct material *m, struct error *error)
{
        int r = 0;
        if (guard->files[CERTIFICATE] != NULL)
                r = read_tls(guard, m, error);
        if (r == 0 && guard->files[TOKEN_FILE] != NULL)
                r = read_tokens(guard, m, error);
        return r;
}

/* ---- life ---- */

int page_guard_new(struct page_guard **out, const struct page_guard_opts *opts, struct error *error)
{
        const char *const paths[FILES] = {opts->certificate, opts->key, opts->client_ca, opts->token_file};
        struct page_guard *guard = calloc(1, sizeof(*guard));
        if (guard == NULL)
                return error_no_memory(error);
        for (int i = 0; i < FILES; i++)
                if (paths[i] != NULL && (guard->files[i] = strdup(paths[i])) == NULL) {
                        page_guard_free(guard);
                        return error_no_memory(error);
                }
        require((opts->certificate == NULL) == (opts->key == NULL));
        look(guard, guard->versions);
        int r = read_files(guard, &guard->material, error);
        if (r < 0)
                page_guard_free(guard);
        else
                *out = guard;
        return r;
}

struct page_guard *page_guard_free(struct page_guard *guard)
{
        if (guard == NULL)
                return NULL;
        material_deinit(&guard->material);
        for (int i = 0; i < FILES; i++)
                free(guard->files[i]);
        free(guard);
        return NULL;
}

void page_guard_refresh(struct page_guard *guard)
{
        struct version versions[FILES];
        struct material next = {0};
        struct error error;
        if (guard == NULL || !look(guard, versions))
                return;
        memcpy(guard->versions, versions, sizeof(versions));
        if (read_files(guard, &next, &error) < 0) {
                material_deinit(&next);
                log_error("metrics: the previous certificates and tokens stay in use: %s", error.text);
                return;
        }
        /* A connection keeps the context with which it began. */
        material_deinit(&guard->material);
        guard->material = next;
        explicit_bzero(&next, sizeof(next));
        log_info("metrics: certificates and tokens have changed and were read again");
}

bool page_guard_has_tls(const struct page_guard *guard)
{
        return guard != NULL && guard->material.tls != NULL;
}

struct ssl_st *page_guard_accept(const struct page_guard *guard, int fd)
{
        require(page_guard_has_tls(guard));
        SSL *tls = SSL_new(guard->material.tls);
        if (tls != NULL && SSL_set_fd(tls, fd) != 1) {
                SSL_free(tls);
                tls = NULL;
        }
        if (tls != NULL)
                SSL_set_accept_state(tls);
        ERR_clear_error();
        return tls;
}

/* ---- permission ---- */

/* Compares with all, whichever is equal. */
static bool is_token(const struct material *m, const char *token)
{
        unsigned char given[DIGEST_SIZE];
        int found = 0;
        if (!digest(given, token))
                return false;
        for (size_t i = 0; i < m->n_tokens; i++)
                found |= CRYPTO_memcmp(given, m->tokens[i], DIGEST_SIZE) == 0;
        return found != 0;
}

bool page_guard_permits(const struct page_guard *guard, const struct ssl_st *tls, const char *token)
{
        if (guard == NULL)
                return true;
        const struct material *m = &guard->material;
        if (!m->has_ca && m->n_tokens == 0)
                return true;
        /* The handshake has verified it: an invalid one would have ended it. */
        if (m->has_ca && tls != NULL && SSL_get0_peer_certificate(tls) != NULL &&
            SSL_get_verify_result(tls) == X509_V_OK)
                return true;
        return token != NULL && is_token(m, token);
}
