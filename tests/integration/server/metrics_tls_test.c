/* SPDX-License-Identifier: Apache-2.0
 *
 * Pages for other machines: TLS, certificates of clients, bearer tokens, and health pages without either.
 */
#include "tests/lib/fixture.h"
#include "tests/lib/http_exchange.h"
#include "tests/lib/ports.h"
#include "tests/lib/streamerctl.h"
#include "tests/lib/suite.h"

#include <sys/socket.h>

#define TOKEN "0123456789abcdef0123456789abcdef"
#define CONNECTIONS 16 /* of a listener */

static unsigned port;
static char *health; /* "http://127.0.0.1:PORT" */

/* ---- certificates ---- */

static void run(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void run(const char *format, ...)
{
        char text[4096], *said;
        FORMAT_ARGS(text, format);
        int r = shell(&said, "cd '%s' && { %s; } 2>&1", suite_path("tls"), text);
        ck_assert_msg(r == 0, "%s: %s", text, said);
        free(said);
}

#define NEW_KEY "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"

static void make_authority(const char *name)
{
        run("openssl req -x509 " NEW_KEY " -keyout %s.key -out %s.pem -days 2 -subj /CN=%s", name, name, name);
}

/* NAME.pem and NAME.key, signed by AUTHORITY. */
static void make_certificate(const char *name, const char *authority, const char *more)
{
        run("openssl req " NEW_KEY " -keyout %s.key -out %s.csr -subj /CN=%s && "
            "printf 'subjectAltName=IP:127.0.0.1\n%s' >%s.ext && "
            "openssl x509 -req -in %s.csr -CA %s.pem -CAkey %s.key -CAcreateserial -out %s.pem -days 2 -extfile %s.ext",
            name, name, name, more, name, name, authority, authority, name, name);
}

static char *tls_path(const char *name)
{
        return suite_path("tls/%s", name);
}

/* Replaces a file as a rotation does. */
static void replace(const char *name, const char *text)
{
        char *next = tls_path("next");
        file_write(next, text, strlen(text));
        must(rename(next, tls_path(name)));
}

static void make_files(void)
{
        must(mkdir(suite_path("tls"), 0755));
        make_authority("authority");
        make_authority("stranger");
        make_certificate("server", "authority", "");
        make_certificate("scraper", "authority", "extendedKeyUsage=clientAuth");
        make_certificate("intruder", "stranger", "extendedKeyUsage=clientAuth");
        make_certificate("for-servers", "authority", "extendedKeyUsage=serverAuth");
        replace("tokens", TOKEN "\n");
}

/* ---- the daemon ---- */

/* `more`: keys of `metrics` besides the certificate. */
static char *metrics_config(const char *more)
{
        return format_text("metrics: {listen: '0.0.0.0:%u', certificate: %s, key: %s%s}\n", port,
                           tls_path("server.pem"), tls_path("server.key"), more);
}

static void start(void)
{
        make_files();
        unsigned ports = free_ports(2);
        port = ports;
        health = format_text("http://127.0.0.1:%u", ports + 1);
        char *more = format_text(", client_ca: %s, token_file: %s", tls_path("authority.pem"), tls_path("tokens"));
        char *text = format_text("%shealth: {listen: '0.0.0.0:%u'}\n", metrics_config(more), ports + 1);
        fixture_begin(
                (const char *const[]){"--config", suite_file("config.yaml", text), "--device", "host=64MiB", NULL});
}

/* Returns the status of curl's output, whose last line it is, after the body; 0: there was no response. */
static int get(char **said, const char *path, const char *flags)
{
        shell(said,
              "cd '%s' && curl -sS -m 30 --cacert authority.pem %s -w '\n%%{http_code}' 'https://127.0.0.1:%u%s' 2>&1",
              suite_path("tls"), flags, port, path);
        const char *line = strrchr(*said, '\n');
        return line != NULL ? atoi(line + 1) : -1;
}

static void answers(const char *path, const char *flags, int status)
{
        char *said;
        int got = get(&said, path, flags);
        ck_assert_msg(got == status, "%s %s: %s", path, flags, said);
        free(said);
}

#define BEARER(token) "-H 'Authorization: Bearer " token "'"
#define CERTIFICATE(name) "--cert " name ".pem --key " name ".key"

FIXTURE(.all = {start, fixture_end}, .each = {fixture_connect, fixture_disconnect});

/* ---- who may read ---- */

static const struct {
        const char *flags;
        int status;
} readers[] = {
        {BEARER(TOKEN), 200},
        {CERTIFICATE("scraper"), 200},
        {CERTIFICATE("scraper") " " BEARER("another-token-0123456"), 200},
        {"", 401},
        {BEARER(TOKEN "0"), 401},
        {BEARER("0123456789abcdef0123456789abcde"), 401},
        {BEARER("0123456789ABCDEF0123456789abcdef"), 401},
        {BEARER(""), 401},
        {"-H 'Authorization: Basic " TOKEN "'", 401},
        {"-H 'Authorization: " TOKEN "'", 401},
        {CERTIFICATE("intruder"), 0},
        {CERTIFICATE("intruder") " " BEARER(TOKEN), 0},
        {CERTIFICATE("for-servers"), 0},
};

TEST(a_client_with_a_certificate_or_a_token_reads_metrics, EACH(readers))
{
        answers("/metrics", readers[_i].flags, readers[_i].status);
        answers("/readyz?model=witness", readers[_i].flags, readers[_i].status);
        answers("/nothing", readers[_i].flags, readers[_i].status == 200 ? 404 : readers[_i].status);
}

TEST(a_refusal_says_what_is_required)
{
        char *said;
        ck_assert_int_eq(get(&said, "/metrics", "-i"), 401);
        ck_assert_msg(strstr(said, "WWW-Authenticate: Bearer") != NULL, "%s", said);
        ck_assert_msg(strstr(said, "a client certificate or a bearer token is required") != NULL, "%s", said);
}

TEST(metrics_over_tls_are_complete)
{
        char *said;
        ck_assert_int_eq(get(&said, "/metrics", BEARER(TOKEN)), 200);
        ck_assert_msg(strstr(said, "streamerd_build_info{") != NULL, "%s", said);
        ck_assert_msg(strstr(said, "\nstreamerd_log_lost_total ") != NULL, "%s", said);
}

static const char *const health_pages[] = {"/livez", "/healthz", "/startupz", "/readyz"};

TEST(health_needs_neither, EACH(health_pages))
{
        struct http_exchange v;
        answers(health_pages[_i], "", 200);
        http_exchange_request(&v, health, "GET", health_pages[_i]);
        ck_assert_int_eq(v.status, 200);
}

static const char *const other_pages[] = {"/metrics", "/readyz?model=witness", "/"};

TEST(the_listener_of_health_serves_nothing_else, EACH(other_pages))
{
        struct http_exchange v;
        http_exchange_request(&v, health, "GET", other_pages[_i]);
        ck_assert_int_eq(v.status, 404);
        ck_assert_str_eq(v.body, "/livez, /readyz, /startupz\n");
}

static const char *const protocols[] = {"--tls-max 1.1 --ciphers DEFAULT@SECLEVEL=0", "--tls-max 1.2", "--tlsv1.3"};

TEST(old_versions_of_tls_are_refused, EACH(protocols))
{
        answers("/livez", protocols[_i], _i == 0 ? 0 : 200);
}

TEST(plain_http_is_not_answered_where_tls_is)
{
        struct http_exchange v;
        http_exchange_request(&v, format_text("http://127.0.0.1:%u", port), "GET", "/livez");
        ck_assert_msg(strstr(v.all, "ok") == NULL, "%s", v.all);
}

/* ---- clients that stall ---- */

/* The beginning of a ClientHello; of more than is sent. */
#define HALF_HELLO "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
#define BYTES(text) text, sizeof(text) - 1

static const struct {
        const char *bytes;
        size_t size;
} stalls[] = {{BYTES("")}, {BYTES("\x16")}, {BYTES(HALF_HELLO)}, {BYTES("GET / HTTP/1.1\r\n")}};

/* More than there are connections: each new one takes the place of the oldest. */
TEST(stalled_clients_keep_nobody_from_the_pages, EACH(stalls))
{
        int stalled[3 * CONNECTIONS];
        unsigned ports[] = {port, port + 1};
        for (int k = 0; k < 2; k++) {
                for (int i = 0; i < 3 * CONNECTIONS; i++) {
                        stalled[i] = must(connect_to_loopback(ports[k]));
                        must(send(stalled[i], stalls[_i].bytes, stalls[_i].size, MSG_NOSIGNAL));
                }
                struct http_exchange v;
                answers("/livez", "", 200);
                answers("/metrics", BEARER(TOKEN), 200);
                http_exchange_request(&v, health, "GET", "/readyz");
                ck_assert_int_eq(v.status, 200);
                client_ok(client, client_call_code(client, "ping", NULL), "ping");
                for (int i = 0; i < 3 * CONNECTIONS; i++)
                        close(stalled[i]);
        }
}

static bool is_closed(int fd)
{
        char bytes[256];
        ssize_t n = recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT);
        return n == 0 || (n < 0 && errno != EAGAIN);
}

TEST(a_stalled_handshake_ends, .slow = true)
{
        int fd = must(connect_to_loopback(port));
        must(send(fd, HALF_HELLO, sizeof(HALF_HELLO) - 1, MSG_NOSIGNAL));
        AWAIT(is_closed(fd));
}

/* A client that reads nothing of a page holds its connection only. */
TEST(a_client_that_does_not_read_keeps_nobody_from_the_pages)
{
        int fds[CONNECTIONS];
        static const char request[] = "GET /readyz HTTP/1.1\r\n\r\n";
        for (int i = 0; i < CONNECTIONS; i++) {
                fds[i] = must(connect_to_loopback(port + 1));
                must(send(fds[i], BYTES(request), MSG_NOSIGNAL));
        }
        struct http_exchange v;
        http_exchange_request(&v, health, "GET", "/livez");
        ck_assert_int_eq(v.status, 200);
        for (int i = 0; i < CONNECTIONS; i++)
                close(fds[i]);
}

/* ---- rotation ---- */

TEST(a_new_token_is_accepted_at_once_and_the_old_one_is_not)
{
        replace("tokens", "the-next-token-0123456789\n" TOKEN "\r\n\n");
        answers("/metrics", BEARER("the-next-token-0123456789"), 200);
        answers("/metrics", BEARER(TOKEN), 200);
        replace("tokens", "the-next-token-0123456789");
        answers("/metrics", BEARER(TOKEN), 401);
        answers("/metrics", BEARER("the-next-token-0123456789"), 200);
        replace("tokens", TOKEN "\n");
        answers("/metrics", BEARER(TOKEN), 200);
}

static const struct {
        const char *text, *why;
} bad_tokens[] = {
        {"", "metrics.token_file: no token"},
        {"\n\r\n", "metrics.token_file: no token"},
        {"fifteen-letters\n", "a token has a space, or fewer than 16 characters"},
        {TOKEN "\nBearer " TOKEN "\n", "a token has a space, or fewer than 16 characters"},
        {"a1234567890123456\nb1234567890123456\nc1234567890123456\nd1234567890123456\ne1234567890123456\n"
         "f1234567890123456\ng1234567890123456\nh1234567890123456\ni1234567890123456\nj1234567890123456\n"
         "k1234567890123456\nl1234567890123456\nm1234567890123456\nn1234567890123456\no1234567890123456\n"
         "p1234567890123456\nq1234567890123456\n",
         "metrics.token_file: more than 16 tokens"},
};

TEST(an_invalid_file_of_tokens_changes_nothing, EACH(bad_tokens))
{
        replace("tokens", bad_tokens[_i].text);
        answers("/metrics", BEARER(TOKEN), 200);
        ck_assert(log_wait_for(test_daemon.log, bad_tokens[_i].why));
        ck_assert(log_wait_for(test_daemon.log, "the previous certificates and tokens stay in use"));
        replace("tokens", TOKEN "\n");
        answers("/metrics", BEARER(TOKEN), 200);
}

TEST(an_absent_file_of_tokens_changes_nothing)
{
        must(rename(tls_path("tokens"), tls_path("hidden")));
        answers("/metrics", BEARER(TOKEN), 200);
        must(rename(tls_path("hidden"), tls_path("tokens")));
}

/* Between the two renames of a rotation the key is not the certificate's. */
TEST(a_new_certificate_is_served_once_its_key_is_there)
{
        run("cp server.pem old.pem && cp server.key old.key");
        make_authority("next-authority");
        make_certificate("next-server", "next-authority", "");
        run("cp next-server.pem new && mv new server.pem");
        answers("/livez", "", 200);
        run("cp next-server.key new && mv new server.key");
        answers("/livez", "--cacert next-authority.pem", 200);
        answers("/livez", "", 0);
        run("mv old.key server.key && mv old.pem server.pem");
        answers("/livez", "", 200);
}

TEST(a_reload_keeps_the_listener_and_names_what_needs_a_restart)
{
        char *path = suite_path("config.yaml"), *before = file_read(path, NULL);
        char *changed = format_text("%s", metrics_config(", token_file: /another"));
        file_write(path, changed, strlen(changed));
        must(kill(test_daemon.pid, SIGHUP));
        ck_assert(log_wait_for(test_daemon.log, "applied, but for what needs a restart: metrics.client_ca, "
                                                "metrics.token_file, health.listen"));
        answers("/metrics", BEARER(TOKEN), 200);
        answers("/metrics", CERTIFICATE("scraper"), 200);
        file_write(path, before, strlen(before));
}

/* ---- what does not start ---- */

static void fails_to_start(const char *config, int status, const char *why)
{
        struct daemon d;
        daemon_init(&d, suite_path("refused-%d", (int)getpid()));
        char *path = suite_path("refused-%d.yaml", (int)getpid());
        file_write(path, config, strlen(config));
        ck_assert_int_eq(
                daemon_run(&d, (const char *const[]){"--config", path, "--device", "host=64MiB", "--root", "/", NULL}),
                status);
        char *said = file_read(d.log, NULL);
        ck_assert_msg(strstr(said, why) != NULL, "%s", said);
}

static const struct {
        const char *server, *key, *ca, *tokens, *why; /* NULL: without the setting */
} unusable[] = {
        {"absent.pem", "server.key", NULL, "tokens",
         "metrics.certificate: it cannot be used: No such file or directory"},
        {"tokens", "server.key", NULL, "tokens", "metrics.certificate: it cannot be used: no start line"},
        {"server.pem", "scraper.key", NULL, "tokens", "metrics.key: it cannot be used: key values mismatch"},
        {"server.pem", "locked.key", NULL, "tokens", "metrics.key: it cannot be used: "},
        {"server.pem", "server.key", "absent.pem", NULL, "metrics.client_ca: it cannot be used: "},
        {"server.pem", "server.key", NULL, "absent", "metrics.token_file: a secret in "},
};

TEST(unusable_files_fail_the_start, EACH(unusable))
{
        run("openssl pkey -in server.key -aes256 -passout pass:word -out locked.key");
        const char *ca = unusable[_i].ca, *tokens = unusable[_i].tokens;
        fails_to_start(format_text("metrics: {listen: '127.0.0.1:0', certificate: %s, key: %s%s%s%s%s}",
                                   tls_path(unusable[_i].server), tls_path(unusable[_i].key),
                                   ca != NULL ? ", client_ca: " : "", ca != NULL ? tls_path(ca) : "",
                                   tokens != NULL ? ", token_file: " : "", tokens != NULL ? tls_path(tokens) : ""),
                       1, unusable[_i].why);
}

static const struct {
        const char *metrics, *why;
} unsafe[] = {
        {"listen: '0.0.0.0:0'",
         "metrics.listen: '0.0.0.0:0' can be reached from outside: it requires metrics.certificate"},
        {"listen: '[::]:0'", "'[::]:0' can be reached from outside"},
        {"listen: '0.0.0.0:0', token_file: /t", "can be reached from outside"},
        {"listen: '0.0.0.0:0', certificate: /c, key: /k", "can be reached from outside"},
        {"listen: '127.0.0.1:0', certificate: /c", "metrics.certificate and metrics.key require each other"},
        {"listen: '127.0.0.1:0', key: /k", "metrics.certificate and metrics.key require each other"},
        {"listen: '127.0.0.1:0', client_ca: /a", "metrics.client_ca: requires metrics.certificate"},
        {"listen: '127.0.0.1:0', token_file: t", "not an absolute path"},
};

TEST(an_address_for_other_machines_requires_tls_and_a_proof, EACH(unsafe))
{
        fails_to_start(format_text("metrics: {%s}", unsafe[_i].metrics), 2, unsafe[_i].why);
}

/* ---- tokens without TLS ---- */

FIXTURE();

TEST(a_token_protects_a_local_listener_too)
{
        struct daemon d;
        struct http_exchange v;
        char *address = format_text("unix:%s", suite_path("guarded"));
        char *text = format_text("metrics: {listen: '%s', token_file: %s}\n", address, suite_file("local", TOKEN));
        DAEMON_START(&d, suite_path("local-daemon"), "--config", suite_file("local.yaml", text), "--device",
                     "host=64MiB", "--root", suite_folder());
        http_exchange_request(&v, address, "GET", "/metrics");
        ck_assert_int_eq(v.status, 401);
        http_exchange_request(&v, address, "GET", "/livez");
        ck_assert_int_eq(v.status, 200);
        ck_assert_int_eq(daemon_stop(&d), 0);
}
