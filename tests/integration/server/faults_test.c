/* SPDX-License-Identifier: Apache-2.0
 *
 * Every call of the daemon into the system and its libraries that can fail is made to fail: the first, the second,
 * ... of each kind, during a client's scenarios. A failure may fail one request, whose error names it; it never
 * affects the daemon, another model or the next request.
 *
 * Each failure must be reported: the error of a request, or a line of the log, has errno's text or the call's own
 * (tests/lib/fault_injection.c). tests/fault-silent.txt lists the calls that need no report, by file, with a reason. An
 * allocation is a call like others: only the daemon's own are made to fail, not those within its libraries. A daemon
 * that does not start must log an error. `shutdown` alone is in no scenario, since it ends the daemon. The last test
 * prints how many failures were reported where.
 *
 * A call fails once for each n, up to the first n that a scenario does not reach.
 *
 * `nm -u` lists the calls. Each must be injected here or listed in tests/fault-exempt.txt with a reason.
 */
#include "tests/lib/encrypted_model.h"
#include "tests/lib/endpoint.h"
#include "tests/lib/fault_injection.h"
#include "tests/lib/service_manager.h"
#include "tests/lib/fixture.h"
#include "tests/lib/http_exchange.h"
#include "tests/lib/nginx.h"
#include "tests/lib/suite.h"

#include <sys/socket.h>

static struct model *model;
static char *source, *copy, *encrypted, *url; /* url: NULL without a web server */
static char *metrics, *state;

/* ---- scenarios with failures ---- */

/* What the requests of a scenario failed with, for the process that made a call fail. */
static char *reported;
#define REPORTED_SIZE 65536

static void report(const char *text)
{
        size_t len = strlen(reported);
        snprintf(reported + len, REPORTED_SIZE - len, "%s\n", text);
}

/* One of our errors, in words. Lost connections count: the next request works. Malformed messages do not. */
static bool named(streamer_client *c, int r)
{
        if (r >= 0)
                return true;
        ck_assert_msg(r >= STREAMER_EOS, "%d is no code of ours", r);
        ck_assert_msg(r != STREAMER_ETIMEOUT, "no answer: %s", streamer_last_error(c));
        ck_assert_msg(r != STREAMER_EPROTO, "%s", streamer_last_error(c));
        ck_assert(strlen(streamer_last_error(c)) > 0);
        report(streamer_last_error(c));
        return false;
}

/* NULL: the failure has prevented it. */
static streamer_client *try_connect(void)
{
        streamer_connect_opts opts = {
                .struct_size = sizeof(opts), .socket = test_daemon.socket, .timeout_ms = PATIENCE_MS};
        streamer_client *c = NULL;
        return named(NULL, streamer_connect(&opts, &c)) ? c : NULL;
}

static bool load_to(streamer_client *c, const char *from, const char *name, const char *device, const char *verify)
{
        streamer_load_opts opts = {.struct_size = sizeof(opts),
                                   .source = from,
                                   .name = name,
                                   .devices = &device,
                                   .n_devices = 1,
                                   .verify = verify};
        streamer_progress progress = {.struct_size = sizeof(progress)};
        streamer_op *op;
        if (!named(c, streamer_load(c, &opts, &op)))
                return false;
        return named(c, streamer_op_wait(op, PATIENCE_MS, &progress));
}

static bool load(streamer_client *c, const char *from, const char *verify)
{
        return load_to(c, from, "victim", "host", verify);
}

/* Every returned byte is right, whichever call failed. */
static void look(streamer_client *c)
{
        streamer_lease *lease;
        streamer_tensor t = STREAMER_TENSOR_INIT;
        if (!named(c, streamer_attach(c, "victim", NULL, &lease)))
                return;
        for (size_t i = 0; i < model->n; i++)
                if (streamer_tensor_find(lease, model->tensors[i].name, &t) == 0)
                        ck_assert_msg(model_check(model, i, t.data), "%s is wrong", model->tensors[i].name);
        streamer_detach(lease);
}

/* No call fails, at first, while the calls are counted. */
static bool injecting;

static void load_look_unload(streamer_client *c, const char *from, const char *verify)
{
        bool ok = load(c, from, verify);
        ck_assert_msg(ok || injecting, "%s", reported);
        if (ok)
                look(c);
        named(c, streamer_unload(c, "victim", 0));
}

static void fetch(streamer_client *c, const char *from)
{
        char *json;
        void *data;
        uint64_t size;
        named(c, streamer_fetch_list(c, from, &json));
        named(c, streamer_fetch(c, from, "SHA256SUMS", &data, &size));
}

/* Of a whole run; shared by the processes of the tests. */
struct counts {
        _Atomic unsigned in_reply, in_log, silent, changes;
};

static struct counts *counts;

static bool call(streamer_client *c, const char *verb, const char *args)
{
        char *reply = NULL;
        return named(c, streamer_call(c, verb, args, &reply));
}

static void live(streamer_client *c)
{
        if (load(c, source, "sha256")) {
                look(c);
                call(c, "show", "{\"model\":\"victim\",\"tensors\":true}");
                call(c, "verify", "{\"model\":\"victim\"}");
        }
        call(c, "ps", "{}");
        call(c, "status", "{}");
        call(c, "pin", "{\"model\":\"victim\"}");
        named(c, streamer_unload(c, "victim", 0));
        if (url != NULL)
                load_look_unload(c, url, NULL);
}

/* ---- other functions ---- */

static void ask(const char *method, const char *page)
{
        struct http_exchange exchange;
        http_exchange_request(&exchange, metrics, method, page);
        if (exchange.status == 0)
                report("the connection was closed without an answer");
        else if (exchange.status >= 500)
                report(exchange.body);
}

static void live_asked(streamer_client *c)
{
        static const char *const pages[] = {"/metrics", "/healthz", "/readyz", "/nothing"};
        for (size_t i = 0; i < sizeof(pages) / sizeof(pages[0]); i++) {
                ask(i == 0 ? "PUT" : "GET", pages[i]);
                ask("GET", pages[i]);
        }
        char *root = format_text("{\"root\":\"%s\"}", fixture_root());
        call(c, "doctor", "{}");
        call(c, "doctor", root);
}

static void live_by_store(streamer_client *c)
{
        ck_assert(!load(c, "s3://bucket/model.safetensors", NULL));
        ck_assert(!load(c, "s3://bucket/folder/", NULL));
        load_look_unload(c, "s3://bucket/full/", "sha256");
        fetch(c, "s3://bucket/full/");
}

static void live_encrypted(streamer_client *c)
{
        load_look_unload(c, encrypted, NULL);
}

/* Each evicts the other to the host cache. */
static void live_on_gpu(streamer_client *c)
{
        if (load_to(c, source, "victim", "cuda:0", NULL) && load_to(c, copy, "other", "cuda:0", NULL) &&
            load_to(c, source, "victim", "cuda:0", NULL))
                call(c, "verify", "{\"model\":\"victim\"}");
        named(c, streamer_unload(c, "other", 0));
        named(c, streamer_unload(c, "victim", 0));
}

static void live_by_hub(streamer_client *c)
{
        load_look_unload(c, "hf://org/victim", NULL);
        fetch(c, "hf://org/victim");
}

/* ---- the other verbs ---- */

/* The next call of a client whose connection was lost connects, and claims the lease again. */
static void reclaim(streamer_client *c)
{
        streamer_lease *lease;
        if (!named(c, streamer_attach(c, "witness", NULL, &lease)))
                return;
        shutdown(client_socket(c), SHUT_RDWR);
        call(c, "ping", "{}");
        streamer_detach(lease);
}

static void live_verbs(streamer_client *c)
{
        static const struct {
                const char *verb, *args;
        } calls[] = {
                {"ping", "{}"},
                {"version", "{}"},
                {"list", "{}"},
                {"whoami", "{}"},
                {"config", "{}"},
                {"reload", "{}"},
                {"metrics", "{}"},
                {"probe", "{\"device\":\"host\"}"},
                {"show", "{\"model\":\"victim\",\"ended\":true}"},
                {"cancel", "{\"model\":\"victim\"}"},
                {"wait", "{\"model\":\"witness\"}"},
                {"unpin", "{\"model\":\"witness\"}"},
                {"keep_alive", "{\"model\":\"witness\",\"keep_alive_ms\":0}"},
                {"subscribe", "{\"model\":\"witness\"}"},
        };
        for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
                call(c, calls[i].verb, calls[i].args);
        call(c, "diff", format_text("{\"model\":\"witness\",\"source\":\"%s\"}", source));
        call(c, "load", format_text("{\"source\":\"%s\",\"device\":\"host\",\"dry_run\":true}", source));
        fetch(c, source);
        reclaim(c);
}

/* Publishes a storage, or gives it up; with `tensors` a tensor of an ordinary model, one generation after the other. */
static void publish(streamer_client *c, bool tensors, bool commits)
{
        const uint64_t bytes = 100000, one = 1;
        const char *key[] = {"engine=1"};
        const streamer_published_tensor t = {.struct_size = sizeof(t),
                                             .name = "tensor",
                                             .dtype = "U8",
                                             .item = 1,
                                             .kind = STREAMER_PUBLISHED_PARAMETER,
                                             .rank = 1,
                                             .shape = &bytes,
                                             .strides = &one};
        streamer_publish_opts opts = STREAMER_PUBLISH_OPTS_INIT;
        streamer_found found = STREAMER_FOUND_INIT;
        streamer_publication *publication = NULL;
        streamer_lease *lease;
        void *data;
        opts.name = tensors ? "put" : "published";
        opts.device = "host";
        opts.key = key;
        opts.n_key = tensors ? 0 : 1;
        opts.flags = tensors ? STREAMER_PUBLISH_TENSORS | STREAMER_PUBLISH_REPLACE | STREAMER_PUBLISH_NO_WAIT : 0;
        if (!named(c, streamer_publish_find(c, &opts, &found, &publication)))
                return;
        if (publication == NULL) /* an earlier run could not unload it, or an abort that failed has left it claimed */
                return;
        if (named(c, streamer_publish_begin(publication, &bytes, 1)) &&
            named(c, streamer_publish_storage(publication, 0, &data))) {
                memset(data, 7, bytes);
                bool described = !tensors || (named(c, streamer_publish_tensor(publication, &t)) &&
                                              named(c, streamer_publish_attribute(publication, "step", "1")));
                if (described && commits && named(c, streamer_publish_commit(publication, &lease))) {
                        streamer_detach(lease);
                        return;
                }
        }
        streamer_publish_abort(publication);
}

/* Two lives, because a claim whose abort fails is held until its connection ends. */
static void live_aborted(streamer_client *c)
{
        publish(c, false, false);
}

static void live_published(streamer_client *c)
{
        publish(c, false, true);
        named(c, streamer_unload(c, "published", 0));
}

static void live_put(streamer_client *c)
{
        publish(c, true, true);
        publish(c, true, true);
        named(c, streamer_unload(c, "put", 0));
}

/* Changes of a pinned model are persisted; a failed write is retried soon. Another priority each time, because the
 * change may have been made although its reply was lost. */
static void live_remembered(streamer_client *c)
{
        char *change = format_text("{\"model\":\"witness\",\"priority\":%u}", 1 + ++counts->changes % 10000);
        char *file = format_text("%s/state", state);
        bool pinned = call(c, "pin", "{\"model\":\"witness\"}");
        unlink(file);
        if (pinned && call(c, "set_priority", change))
                AWAIT(access(file, F_OK) == 0);
}

/* ---- the daemon ---- */

#define NTH_MAX 100000
/* Short: the first few of each call, then ever wider steps; long (STREAMERD_FAULTS=all, or a call's name): each. */
#define NTH_EACH 4
/* A message that repeats within 5 s is counted, and logged with its count after that. */
#define LOG_MS 10000

static struct nginx nginx;
static struct endpoint store; /* of S3, and a Hub */

/* Also settings that are off by default; the daemon's user may do everything, by a rule with a user name. */
#define SETTINGS                                                                                                       \
        "devices:\n  - host=64MiB\n  - cuda:0=6MiB\nhost_cache: 16MiB\nio:\n  memory_limit: 16MiB\nmetrics:\n  "       \
        "listen: %s\nhttp:\n  ca: %s\n"                                                                                \
        "  hosts:\n    - {host: \"http://127.0.0.1:%u\", user: u, password: p}\n"                                      \
        "encryption:\n  keys: [\"file:%s\"]\n"                                                                         \
        "cuda:\n  library: %s\n"                                                                                       \
        "access:\n  roles:\n    - role: admin\n      users: [root]\n    - role: attach\n      groups: [root]\n"

#define COMMIT "0123456789abcdef0123456789abcdef01234567"

/* The files of the model, as a list of keys, or of a revision's files. */
static char *list_files(bool keys)
{
        struct dirent *entry;
        char *text = format_text("%s", "");
        DIR *folder = opendir(source);
        while ((entry = readdir(folder)) != NULL)
                if (entry->d_type == DT_REG && keys)
                        text = format_text("%s<Contents><Key>full/%s</Key><Size>%ju</Size><ETag>e1</ETag></Contents>",
                                           text, entry->d_name,
                                           (uintmax_t)file_size(format_text("%s/%s", source, entry->d_name)));
                else if (entry->d_type == DT_REG)
                        text = format_text("%s%s{\"rfilename\":\"%s\"}", text, text[0] != '\0' ? "," : "",
                                           entry->d_name);
        closedir(folder);
        return text;
}

/* s3://bucket/full/ and hf://org/victim are the model's folder. The bucket is in another region than the daemon thinks.
 * The Hub redirects for small files; a range that fails after a redirect is silently requested again. */
static void answer_store(struct endpoint *endpoint, const struct endpoint_request *request,
                         struct endpoint_reply *reply)
{
        const char *name = strrchr(request->path, '/') + 1;
        char *file = format_text("%s/%s", source, name);
        const char *authorization = endpoint_header(request, "Authorization");
        if (authorization != NULL && strstr(authorization, "/here/s3/") != NULL) {
                reply->status = 301;
                reply->headers = format_text("x-amz-bucket-region: elsewhere-1\r\n");
        } else if (strncmp(request->path, "/bucket/?", 9) == 0 && strstr(request->path, "prefix=full") != NULL) {
                reply->body = format_text("<ListBucketResult><IsTruncated>false</IsTruncated>%s</ListBucketResult>",
                                          list_files(true));
        } else if (strncmp(request->path, "/api/models/org/victim/revision/main", 36) == 0) {
                reply->body = format_text("{\"sha\":\"" COMMIT "\",\"siblings\":[%s]}", list_files(false));
        } else if (strncmp(request->path, "/org/victim/resolve/", 20) == 0 && strcmp(name, "SHA256SUMS") == 0) {
                reply->status = 302;
                reply->headers = format_text("Location: /bucket/full/%s\r\nETag: \"e1\"\r\n", name);
        } else if (strncmp(request->path, "/bucket/full/", 13) == 0 ||
                   strncmp(request->path, "/org/victim/resolve/", 20) == 0) {
                size_t size;
                char *data = file_read(file, &size);
                reply->headers = format_text("ETag: \"e1\"\r\n");
                endpoint_range(request, reply, data, size);
                free(data);
        } else {
                reply->status = 404;
        }
}

static void begin_store(void)
{
        store.answer = answer_store;
        endpoint_start(&store);
        setenv("AWS_ENDPOINT_URL_S3", store.url, 1);
        setenv("AWS_ACCESS_KEY_ID", "test", 1);
        setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
        setenv("AWS_REGION", "here", 1);
        setenv("HF_ENDPOINT", store.url, 1);
        setenv("HF_TOKEN", "hf_token", 1);
}

/* The one call that this run is about; NULL: all. */
static const char *only(void)
{
        const char *mode = getenv("STREAMERD_FAULTS");
        return mode == NULL || strcmp(mode, "all") == 0 || strcmp(mode, "short") == 0 ? NULL : mode;
}

static bool is_meant(enum fault_call which)
{
        return only() == NULL || strcmp(only(), fault_name(which)) == 0;
}

static bool every_one(void)
{
        const char *mode = getenv("STREAMERD_FAULTS");
        return mode != NULL && strcmp(mode, "short") != 0;
}

static uint64_t next_nth(uint64_t nth)
{
        if (nth < NTH_EACH || every_one())
                return nth + 1;
        return nth * 2;
}

static void (*const lives[])(streamer_client *c) = {live,           live_asked,      live_by_store, live_by_hub,
                                                    live_on_gpu,    live_remembered, live_verbs,    live_aborted,
                                                    live_published, live_put,        live_encrypted};
#define LIVES (sizeof(lives) / sizeof(lives[0]))
/* The calls of each scenario without failures. */
static bool calls_of[LIVES][FAULT_COUNT];

/* In a child process: leases of a lost connection end with it. */
static void live_and_die(void (*life)(streamer_client *c))
{
        pid_t pid = must(fork());
        if (pid == 0) {
                streamer_client *c = try_connect();
                if (c != NULL)
                        life(c);
                streamer_close(c);
                _exit(0);
        }
        ck_assert_msg(child_wait(pid) == 0, "the client failed");
}

/* Only the first of several failures to write the state is logged. */
static bool is_persisted(streamer_client *c)
{
        return json_at(client_call(c, "doctor", NULL), "state.error") == NULL;
}

/* The failure may have prevented it, or ended the connection while the load was running. */
static bool are_unloaded(streamer_client *c)
{
        static const char *const names[] = {"victim", "other", "published", "put"};
        bool all = true;
        for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
                streamer_call(c, "cancel", format_text("{\"model\":\"%s\"}", names[i]), NULL);
                all &= streamer_unload(c, names[i], STREAMER_UNLOAD_FORCE) == STREAMER_ENOENT;
        }
        return all;
}

/* Without failures all scenarios pass, earlier models are resident, and the daemon uses what it used before: memory of
 * models, leases, descriptors, threads. */
static void works(enum fault_call which, uint64_t nth)
{
        if (daemon_ends_within(&test_daemon, 0)) {
                char *log = file_read(test_daemon.log, NULL);
                size_t len = strlen(log);
                ck_abort_msg("the daemon ended: %s %lu\n%s", fault_name(which), (unsigned long)nth,
                             len > 1500 ? log + len - 1500 : log);
        }
        streamer_client *c = client_open(&test_daemon);
        AWAIT(are_unloaded(c));
        AWAIT(is_persisted(c));
        streamer_close(c);
        fixture_still_serves();
}

/* ---- a failure is reported ---- */

/* The log has an error, or standard error one of the settings. */
static void check_explained(const struct daemon *d, size_t from, enum fault_call which, uint64_t nth)
{
        char *log = file_read(d->log, NULL);
        ck_assert_msg(strstr(log + from, " error: ") != NULL || strncmp(log + from, "streamerd: ", 11) == 0,
                      "%s %ju: the daemon has not started, and does not say why", fault_name(which), (uintmax_t)nth);
        counts->in_log++;
}

/* The line of a failed load is no evidence: its client has the same text, and the count of a repeated one may belong to
 * an earlier failure. */
static bool is_logged(const struct daemon *d, size_t from, enum fault_call which)
{
        char *log = file_read(d->log, NULL), *next = log + from;
        bool found = false;
        for (char *line; !found && (line = strsep(&next, "\n")) != NULL;)
                found = strstr(line, ": failed: ") == NULL && fault_is_named(which, line);
        free(log);
        return found;
}

static size_t log_size(const struct daemon *d)
{
        struct stat st;
        return stat(d->log, &st) == 0 ? (size_t)st.st_size : 0;
}

/* `from`: the size of the log before the call was made to fail. */
static void check_reported(const struct daemon *d, size_t from, enum fault_call which, uint64_t nth)
{
        const char *site;
        if (fault_is_named(which, reported)) {
                counts->in_reply++;
        } else if (is_logged(d, from, which)) {
                counts->in_log++;
        } else if (fault_is_silent(which, site = fault_site(build_path("streamerd")))) {
                counts->silent++;
        } else {
                ck_assert_msg(WITHIN(LOG_MS, is_logged(d, from, which)),
                              "%s %ju failed silently at %s: the requests reported '%s'", fault_name(which),
                              (uintmax_t)nth, site, reported);
                counts->in_log++;
        }
}

static void note_calls(void)
{
        uint64_t before[FAULT_COUNT];
        for (size_t l = 0; l < LIVES; l++) {
                for (int i = 0; i < FAULT_COUNT; i++)
                        before[i] = fault_seen((enum fault_call)i);
                live_and_die(lives[l]);
                for (int i = 0; i < FAULT_COUNT; i++)
                        calls_of[l][i] = fault_seen((enum fault_call)i) > before[i];
        }
}

static void begin(void)
{
        metrics = format_text("unix:%s", suite_path("metrics"));
        state = suite_path("state");
        must(mkdir(state, 0700));
        char *ca = suite_path("ca.pem");
        if (nginx_unavailable() == NULL)
                nginx_start(&nginx, suite_path("nginx"), suite_folder());
        char *keys = suite_path("keys");
        encrypted_keys_write(keys, encrypted_keys(NULL));
        char *settings = format_text(SETTINGS, metrics, ca, nginx.http > 0 ? nginx.http : 1, keys,
                                     build_path("tests/fake/libcudart.so.13"));
        file_write(ca, "", 0); /* nothing here asks for its certificates */
        char *config = suite_file("config.yaml", settings);
        setenv("FAKECUDA_DEVICES", "1", 1);
        begin_store();
        reported = must_share(REPORTED_SIZE);
        counts = must_share(sizeof(*counts));
        faults_begin(suite_folder());
        faults_show();
        fixture_begin((const char *const[]){"--config", config, "--state", state, NULL});
        faults_hide();
        model = model_mixed(3, 3 << 20);
        source = fixture_path("victim");
        model_write_sharded(model, source, 2, false);
        /* So that a load can verify the files. */
        ck_assert_int_eq(system(format_text("cd '%s' && sha256sum *.safetensors >SHA256SUMS", source)), 0);
        copy = fixture_path("copy");
        model_write_sharded(model, copy, 2, false);
        encrypted = fixture_path("encrypted.safetensors");
        encrypted_write(&(struct encrypted_form){.chunk = 1 << 20}, model, encrypted);
        if (nginx_unavailable() == NULL)
                url = format_text("http://127.0.0.1:%u%s/model.safetensors.index.json", nginx.http,
                                  source + strlen(suite_folder()));
        streamer_client *c = client_open(&test_daemon);
        uint64_t used = client_used(c);
        note_calls();
        AWAIT(json_number(client_call(c, "status", NULL), "devices.1.used") + client_host_cache(c) == 0);
        client_wait_used(c, used);
        streamer_close(c);
        fixture_account();
}

static void one_by_one(enum fault_call which, void (*life)(streamer_client *c))
{
        for (uint64_t nth = 0; nth < NTH_MAX; nth = next_nth(nth)) {
                size_t from = log_size(&test_daemon);
                reported[0] = '\0';
                fault_arm(which, nth);
                injecting = true;
                live_and_die(life);
                bool struck = fault_disarm();
                works(which, nth);
                if (!struck)
                        return;
                check_reported(&test_daemon, from, which, nth);
        }
}

static void end(void)
{
        if (!daemon_ends_within(&test_daemon, 0)) { /* then a test has said so */
                int status = daemon_stop(&test_daemon);
                if (status)
                        daemon_die(&test_daemon, "ended with %d", status);
        }
        if (url != NULL)
                nginx_stop(&nginx);
}

FIXTURE(.all = {begin, end}, .timeout = every_one() ? 7200 : 300);

/* In the first life in which it fails; in all of them in the long form. */
TEST(a_failed_call_fails_at_most_one_request, .to = FAULT_COUNT, .slow = true)
{
        if (!is_meant((enum fault_call)_i))
                return;
        for (size_t l = 0; l < LIVES; l++) {
                if (!calls_of[l][_i])
                        continue;
                one_by_one((enum fault_call)_i, lives[l]);
                if (!every_one() && fault_failed((enum fault_call)_i) > 0)
                        return;
        }
}

/* The short form ends before this life. */
TEST(a_change_that_had_no_memory_is_persisted_soon, .slow = true)
{
        if (is_meant(FAULT_calloc) && !every_one())
                one_by_one(FAULT_calloc, live_remembered);
}

/* A socket file left by a killed daemon. */
static void leave_socket(const char *path)
{
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        ck_assert_uint_lt(strlen(path), sizeof(address.sun_path));
        strcpy(address.sun_path, path);
        int fd = must(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
        unlink(path);
        must(bind(fd, (struct sockaddr *)&address, sizeof(address)));
        close(fd);
}

TEST(a_failed_call_at_startup_is_reported_or_replaced, .to = FAULT_COUNT, .slow = true)
{
        struct daemon d;
        if (!is_meant((enum fault_call)_i))
                return;
        daemon_init(&d, suite_path("start"));
        reported[0] = '\0';
        setenv("INVOCATION_ID", "of a service", 1);
        for (uint64_t nth = 0; nth < (every_one() ? NTH_MAX : NTH_EACH); nth++) {
                leave_socket(d.socket);
                size_t from = log_size(&d);
                fault_arm((enum fault_call)_i, nth);
                faults_show();
                int status = daemon_try(&d, (const char *const[]){"--config", suite_path("config.yaml"), "--root",
                                                                  fixture_root(), "--root", ".", "--metrics-listen",
                                                                  "127.0.0.1:0", NULL});
                faults_hide();
                bool struck = fault_disarm();
                /* 6: a connect() that fails with EAGAIN means that another daemon serves the socket. */
                bool expected = (status >= 0 && status <= 2) || status == 7 || (_i == FAULT_connect && status == 6);
                ck_assert_msg(expected, "%s %lu: exit status %d", fault_name((enum fault_call)_i), (unsigned long)nth,
                              status);
                if (!struck)
                        break;
                if (status == 0)
                        check_reported(&d, from, (enum fault_call)_i, nth);
                else
                        check_explained(&d, from, (enum fault_call)_i, nth);
        }
}

/* ---- models in the fd store ---- */

/* Of the manager, and of the snapshot. */
static const enum fault_call of_store[] = {FAULT_connect, FAULT_pipe2, FAULT_ppoll, FAULT_sd_is_socket_unix,
                                           FAULT_pwritev};

static void load_persisted(const struct daemon *d)
{
        streamer_client *c = client_open(d);
        client_load(c, source, "kept");
        streamer_close(c);
}

/* A model that was not persisted is loaded again by the test. */
TEST(a_failed_call_to_the_manager_loses_no_model, EACH(of_store), .slow = true)
{
        struct manager m;
        if (!is_meant(of_store[_i]))
                return;
        faults_show();
        manager_init(&m, suite_path("manager"), MANAGER_FDS,
                     (const char *const[]){"--device", "host=64MiB", "--root", fixture_root(), NULL});
        for (uint64_t nth = 0; nth < 3; nth++) {
                manager_start(&m);
                fault_arm(of_store[_i], nth);
                load_persisted(&m.d);
                streamer_client *c = client_open(&m.d);
                client_unload(c, "kept");
                client_load(c, source, "kept");
                streamer_close(c);
                manager_kill(&m);
                manager_start(&m);
                ck_assert_msg(fault_disarm() || nth > 0, "%s did not fail", fault_name(of_store[_i]));
                load_persisted(&m.d);
                manager_stop(&m);
        }
        faults_hide();
        manager_deinit(&m);
}

/* ---- the calls ---- */

/* Writes the names of the calls that can be made to fail, of those alone that never have. */
static char *write_calls(const char *file, bool never)
{
        char *path = suite_path("%s", file);
        FILE *out = fopen(path, "we");
        ck_assert_ptr_nonnull(out);
        for (int i = 0; i < FAULT_COUNT; i++)
                if (!never || fault_failed((enum fault_call)i) == 0)
                        fprintf(out, "%s\n", fault_name((enum fault_call)i));
        ck_assert_int_eq(fclose(out), 0);
        return path;
}

/* Some compilers replace read() by __read_chk() and so on, which cannot be injected; glibc's names for changed standard
 * functions (__isoc23_strtol) are mapped to those of the source. tests/fault-exempt.txt has "name name ...: reason". */
TEST(every_call_is_injected_or_exempt, .slow = true)
{
        char *calls = suite_path("calls"), *injected = write_calls("injected", false), *exempt = suite_path("exempt"),
             *said;
        ck_assert_int_eq(shell(&said,
                               "nm -D -u '%s' | awk '{ sub(/@.*/, \"\", $2); print $2 }' | "
                               "sed 's/^__isoc[0-9]*_//' | sort -u >%s",
                               build_path("streamerd"), calls),
                         0);
        if (shell(&said, "grep '_chk$' %s", calls) == 0)
                SKIP("the compiler replaces calls (_FORTIFY_SOURCE)");
        shell(&said, "sed -n '/^#/d; s/:.*//p' tests/fault-exempt.txt | tr ' ' '\\n' | sort -u >%s", exempt);
        shell(&said, "sort -u %s %s | comm -23 %s -", exempt, injected, calls);
        ck_assert_msg(*said == '\0', "neither made to fail nor exempt:\n%s", said);
        shell(&said, "sort %s | comm -12 %s -", injected, calls);
        ck_assert_uint_gt(strlen(said), 400);
        printf("failures: %u; %u named in a reply, %u in the log, %u silent by design\n",
               counts->in_reply + counts->in_log + counts->silent, counts->in_reply, counts->in_log, counts->silent);
        shell(&said, "sort %s | comm -12 %s - | comm -23 - %s", write_calls("never", true), calls, exempt);
        if (only() == NULL)
                ck_assert_msg(*said == '\0', "never made to fail:\n%s", said);
        else
                ck_assert_msg(shell(&said, "grep -qx '%s' %s", only(), injected) == 0, "%s cannot be made to fail",
                              only());
}
