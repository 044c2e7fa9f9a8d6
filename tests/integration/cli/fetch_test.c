/* SPDX-License-Identifier: Apache-2.0
 *
 * fetch: small files beside the weights of a source, from local files and a web server, its errors, and `streamerctl
 * fetch`. Stores and the Hub: s3_test and hub_test; users: roles_test.
 */
#include "tests/integration/cli_fixture.h"
#include "tests/integration/remote_fixture.h"
#include "tests/lib/endpoint.h"
#include "tests/lib/ports.h"
#include "tests/lib/wire.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#define FILE_MAX ((size_t)64 << 20)
#define PAGE ((size_t)512 << 10)

/* ---- a web server ---- */

static struct endpoint web;

static char *bytes_of(size_t size)
{
        char *data = must_alloc(size + 1);
        for (size_t i = 0; i < size; i++)
                data[i] = (char)(i * 2654435761u >> 13);
        return data;
}

#define NAME "/config%20a.json"

/* /N/config a.json has N bytes; /stream/... is sent without ranges, /hang/... never, and told.json creates a file when
 * requested, because this process is not that of the tests. */
static void answer(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        size_t size = 0, len = strlen(request->path);
        bool is_file = len > strlen(NAME) && strcmp(request->path + len - strlen(NAME), NAME) == 0;
        if (strncmp(request->path, "/hang/", 6) == 0) {
                if (strstr(request->path, "told.json"))
                        file_write(suite_path("asked"), "", 0);
                reply->hang = true;
        } else if (is_file && sscanf(request->path, "/stream/%zu/", &size) == 1) {
                reply->body = bytes_of(size);
                reply->size = size;
        } else if (!is_file || sscanf(request->path, "/%zu/", &size) != 1) {
                reply->status = 404;
        } else if (size == 0) {
                reply->status = 416;
                reply->headers = format_text("Content-Range: bytes */0\r\n");
        } else {
                char *data = bytes_of(size);
                reply->headers = format_text("ETag: \"%zu\"\r\n", size);
                endpoint_range(request, reply, data, size);
                free(data);
        }
}

static void begin(void)
{
        web.answer = answer;
        endpoint_start(&web);
        fixture_begin(NULL);
}

/* ---- requests of the test ---- */

static char *in_root(const char *name, const char *content)
{
        char *path = fixture_path("%s", name);
        file_write(path, content, strlen(content));
        return path;
}

static void make_sparse(const char *name, size_t size)
{
        int fd = must(open(fixture_path("%s", name), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
        must(ftruncate(fd, (off_t)size));
        close(fd);
}

/* ---- local files ---- */

static const size_t sizes[] = {0, 1, 4095, 4096, 4097, 131072, PAGE, PAGE + 1, 2 * PAGE, (1 << 20) + 3, (17 << 20) + 1};

static void empty_root(void)
{
        must(system(format_text("find %s -mindepth 1 -not -name 'witness*' -delete", fixture_root())));
}

FIXTURE(.all = {begin, fixture_end}, .outer = {fixture_connect, fixture_disconnect}, .each = {empty_root, NULL});

TEST(a_file_of_any_size, EACH(sizes))
{
        char *bytes = bytes_of(sizes[_i]);
        file_write(fixture_path("sized.json"), bytes, sizes[_i]);
        assert_fetches(fixture_root(), "sized.json", bytes, sizes[_i]);
}

TEST(fetches_files_beside_a_file_and_below_a_directory)
{
        must(mkdir(fixture_path("m"), 0755));
        must(mkdir(fixture_path("m/sub"), 0755));
        in_root("m/config.json", "config");
        in_root("m/sub/pooling.json", "pooling");
        fixture_write(model_mixed(2, 1 << 18), "m/model.safetensors");
        assert_fetches_text(fixture_path("m"), "config.json", "config");
        assert_fetches_text(fixture_path("m/"), "sub/pooling.json", "pooling");
        assert_fetches_text(fixture_path("m/model.safetensors"), "config.json", "config");
        assert_fetches_text(format_text("file://%s", fixture_path("m")), "config.json", "config");
        must(chdir(fixture_root()));
        assert_fetches_text("./m", "config.json", "config");
}

TEST(a_source_without_weights)
{
        must(mkdir(fixture_path("tokenizer"), 0755));
        in_root("tokenizer/tokenizer.json", "words");
        assert_fetches_text(fixture_path("tokenizer"), "tokenizer.json", "words");
}

TEST(a_list_as_json)
{
        char *json;
        must(mkdir(fixture_path("listed"), 0755));
        in_root("listed/b.json", "12");
        in_root("listed/a.json", "1");
        in_root("listed/.hidden", "1");
        fixture_write(model_mixed(2, 1 << 16), "listed/model.safetensors");
        assert_lists(fixture_path("listed"),
                     "{\"files\":[{\"name\":\"a.json\",\"bytes\":1},{\"name\":\"b.json\",\"bytes\":2}]}");
        char *arguments = format_text("{\"source\":\"%s\",\"weights\":true}", fixture_path("listed"));
        ck_assert_int_eq(streamer_call(client, "fetch", arguments, &json), 0);
        ck_assert_ptr_nonnull(strstr(json, "\"model.safetensors\""));
        ck_assert_ptr_nonnull(strstr(json, "\"a.json\""));
        ck_assert_int_eq(streamer_fetch_list(client, fixture_path("none"), &json), STREAMER_ENOENT);
        ck_assert_int_eq(streamer_fetch_list(client, "/etc", &json), STREAMER_EFAILED);
}

TEST(a_path_that_is_no_file_below_a_root)
{
        must(symlink("/etc/passwd", fixture_path("absolute.json")));
        must(symlink("../../../../../../../../etc/passwd", fixture_path("climbing.json")));
        must(mkfifo(fixture_path("fifo.json"), 0644));
        must(mkdir(fixture_path("folder.json"), 0755));
        assert_refuses(fixture_root(), "../x", STREAMER_EINVAL, "not the name of a file beside the weights");
        assert_refuses(fixture_root(), "none.json", STREAMER_ENOENT, "No such file");
        assert_refuses(fixture_root(), "witness.safetensors/config.json", STREAMER_ENOENT, "Not a directory");
        assert_refuses(fixture_root(), "absolute.json", STREAMER_EFAILED, "outside the roots");
        assert_refuses(fixture_root(), "climbing.json", STREAMER_EFAILED, "outside the roots");
        assert_refuses(fixture_root(), "fifo.json", STREAMER_EFAILED, "a FIFO, not a regular file");
        assert_refuses(fixture_root(), "folder.json", STREAMER_EFAILED, "a folder, not a regular file");
        assert_refuses("/etc", "passwd", STREAMER_EFAILED, "outside the roots");
        assert_refuses(fixture_path("none"), "config.json", STREAMER_ENOENT, "No such file");
        assert_refuses("ftp://x/y", "config.json", STREAMER_EUNSUPPORTED, "no source of this kind");
}

TEST(a_file_that_is_too_large)
{
        make_sparse("large.json", FILE_MAX + 1);
        assert_refuses(fixture_root(), "large.json", STREAMER_ELIMIT, "67108865 bytes: files of up to 64 MiB");
}

/* ---- several at once ---- */

static void send_fetch(struct wire *w, uint64_t id, const char *file, uint64_t more)
{
        struct request request = {
                .verb = VERB_fetch, .id = id, .u.fetch = {.source = fixture_root(), .file = file, .more = more}};
        ck_assert(wire_request(w, &request));
}

/* The bytes of the reply; *more 0: the last ones. */
static size_t read_page(struct wire *w, uint64_t *id, uint64_t *more)
{
        const char *data;
        size_t n = 0;
        const msgpack_object *reply = wire_reply_ok(w);
        *id = wire_number(w, "id");
        ck_assert(object_bin(reply, "data", &data, &n));
        if (!object_u64(reply, "more", more))
                *more = 0;
        return n;
}

/* Those whose bytes exceed the user's share wait until pages of the others are read. */
TEST(many_requests_of_one_client)
{
        struct wire w;
        enum { FETCHES = 12 };
        size_t got[2 + FETCHES] = {0};
        make_sparse("much.json", FILE_MAX / 4);
        wire_connect(&w, &test_daemon);
        for (uint64_t id = 2; id < 2 + FETCHES; id++)
                send_fetch(&w, id, "much.json", 0);
        for (int left = FETCHES; left > 0;) {
                uint64_t id = 0, more;
                size_t n = read_page(&w, &id, &more);
                got[id] += n;
                if (more != 0)
                        send_fetch(&w, id, "much.json", more);
                left -= more == 0;
        }
        for (size_t id = 2; id < 2 + FETCHES; id++)
                ck_assert_uint_eq(got[id], FILE_MAX / 4);
        wire_close(&w);
}

/* Another connection's transfer cannot be read, nor one that has ended. */
TEST(pages_of_a_transfer_are_read_by_its_connection_until_it_ends)
{
        struct wire w, other;
        uint64_t id, more, last = 0;
        make_sparse("paged.json", PAGE + 1);
        wire_connect(&w, &test_daemon);
        wire_connect(&other, &test_daemon);
        send_fetch(&w, 2, "paged.json", 0);
        ck_assert_uint_eq(read_page(&w, &id, &last), PAGE);
        ck_assert_uint_ne(last, 0);
        send_fetch(&other, 2, "paged.json", last);
        ck_assert(wire_read_code(&other, "not-found"));
        send_fetch(&w, 3, "paged.json", last);
        ck_assert_uint_eq(read_page(&w, &id, &more), 1);
        ck_assert_uint_eq(more, 0);
        send_fetch(&w, 4, "paged.json", last);
        ck_assert(wire_read_code(&w, "not-found"));
        wire_close(&w);
        wire_close(&other);
}

/* ---- network ---- */

static const size_t web_sizes[] = {0, 5, 131073, (16 << 20) + 7};

TEST(a_file_beside_that_of_a_web_server, EACH(web_sizes))
{
        size_t n = web_sizes[_i];
        char *bytes = bytes_of(n);
        assert_fetches(format_text("%s/%zu/m.safetensors", web.url, n), "config a.json", bytes, n);
        assert_fetches(format_text("%s/%zu/model.safetensors.index.json?sig=x", web.url, n), "config a.json", bytes, n);
        if (n > 0)
                assert_fetches(format_text("%s/stream/%zu/m.safetensors", web.url, n), "config a.json", bytes, n);
}

TEST(a_file_missing_on_the_web_server)
{
        char *source = format_text("%s/5/m.safetensors", web.url);
        assert_refuses(source, "tokenizer.json", STREAMER_ENOENT, "404");
        assert_refuses(source, "../5/config a.json", STREAMER_EINVAL, "not the name");
        assert_refuses("http://192.0.2.1/m.safetensors", "config.json", STREAMER_EPERM, "allow_plain");
        assert_lists(source, "{\"files\":[]}");
}

TEST(a_server_that_does_not_answer)
{
        const streamer_connect_opts opts = {
                .struct_size = sizeof(opts), .socket = test_daemon.socket, .timeout_ms = 100};
        streamer_client *c;
        void *data;
        uint64_t size;
        int r;
        while ((r = streamer_connect(&opts, &c)) == STREAMER_ETIMEOUT)
                ; /* the timeout is that of the connection, too */
        ck_assert_int_eq(r, 0);
        char *source = format_text("%s/hang/m.safetensors", web.url);
        ck_assert_int_eq(streamer_fetch(c, source, "config.json", &data, &size), STREAMER_ETIMEOUT);
        streamer_close(c);
        client_ok(client, client_call_code(client, "ping", NULL), "ping");
}

/* A server that answers each request with one byte after another, and never stalls. */
static unsigned serve_slowly(void)
{
        static const char head[] = "HTTP/1.1 200 OK\r\nContent-Length: 67108864\r\n\r\n";
        unsigned port;
        int listener = listen_on_loopback(8, &port);
        if (must(fork()) == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                for (char request[4096];;) {
                        int fd = must(accept(listener, NULL, NULL));
                        if (read(fd, request, sizeof(request)) > 0)
                                send(fd, head, sizeof(head) - 1, MSG_NOSIGNAL);
                        while (send(fd, "x", 1, MSG_NOSIGNAL) == 1)
                                usleep(20000);
                        close(fd);
                }
        }
        close(listener);
        return port;
}

TEST(a_server_that_sends_one_byte_at_a_time)
{
        struct daemon d;
        void *data = NULL;
        uint64_t size;
        char *config = suite_file("slow.yaml", "http: {stall: 3s, tries: 1, patience: 0s}\n");
        char *from = format_text("http://127.0.0.1:%u/m.safetensors", serve_slowly());
        DAEMON_START(&d, suite_path("d-slow"), "--config", config, "--device", "host=16MiB", "--root", fixture_root());
        streamer_client *c = client_open(&d);
        client_fails(c, streamer_fetch(c, from, "config.json", &data, &size), STREAMER_ETIMEOUT,
                     "did not answer in time");
        streamer_close(c);
        ck_assert_int_eq(daemon_stop(&d), 0);
}

/* Another daemon, whose exit shows that it does not wait for the server. */
TEST(a_client_that_disconnects_during_a_fetch)
{
        struct daemon d;
        struct wire w;
        daemon_start_simple(&d, suite_path("d-left"), fixture_root(), "16MiB");
        char *source = format_text("%s/hang/m.safetensors", web.url);
        struct request request = {.verb = VERB_fetch, .id = 2, .u.fetch = {.source = source, .file = "told.json"}};
        wire_connect(&w, &d);
        ck_assert(wire_request(&w, &request));
        AWAIT(access(suite_path("asked"), F_OK) == 0);
        wire_close(&w);
        streamer_client *c = client_open(&d);
        ck_assert_int_eq(client_call_code(c, "ping", NULL), 0);
        streamer_close(c);
        ck_assert_int_eq(daemon_stop(&d), 0);
}

/* ---- streamerctl ---- */

static void assert_file(const char *path, const char *content)
{
        char *read = file_read(path, NULL);
        ck_assert_str_eq(read, content);
}

static void make_source(void)
{
        must(mkdir(fixture_path("cli"), 0755));
        must(mkdir(fixture_path("cli/sub"), 0755));
        in_root("cli/config.json", "config");
        in_root("cli/sub/more.json", "more");
        in_root("cli/model.bin", "weights");
}

TEST(streamerctl_copies_the_files_that_are_listed)
{
        struct stat st;
        char *to = suite_path("to-all");
        make_source();
        SAYS(0, "sub/more.json   4 B", "fetch", fixture_path("cli"), "--list");
        SAYS(0, "config.json\nsub/more.json\n", "fetch", fixture_path("cli"), "--list", "-q");
        SAYS(0, "config.json", "fetch", fixture_path("cli"), "--directory", to);
        assert_file(format_text("%s/config.json", to), "config");
        assert_file(format_text("%s/sub/more.json", to), "more");
        ck_assert_int_ne(access(format_text("%s/model.bin", to), F_OK), 0);
        in_root("cli/config.json", "changed");
        must(chmod(format_text("%s/config.json", to), 0600));
        SAYS(0, "{\"schema\":1,\"files\":[{\"name\":\"config.json\",\"bytes\":7}]}", "fetch", fixture_path("cli"),
             "config.json", "--directory", to, "--json");
        assert_file(format_text("%s/config.json", to), "changed");
        must(stat(format_text("%s/config.json", to), &st));
        ck_assert_uint_eq(st.st_mode & 07777, 0600);
        SAYS(0, "model.bin", "fetch", fixture_path("cli"), "model.bin", "--directory", to);
        assert_file(format_text("%s/model.bin", to), "weights");
}

/* In a container each process may have the same number. */
TEST(streamerctl_passes_over_what_was_left_by_a_killed_process_of_its_number)
{
        char *to = suite_path("to-left");
        make_source();
        must(mkdir(to, 0755));
        int status = must(system(
                format_text("touch '%s'/.streamerctl-$$.part && exec '%s' --socket '%s' fetch '%s' --directory '%s'",
                            to, build_path("streamerctl"), test_daemon.socket, fixture_path("cli"), to)));
        ck_assert_int_eq(status, 0);
        assert_file(format_text("%s/config.json", to), "config");
        assert_file(format_text("%s/sub/more.json", to), "more");
}

TEST(streamerctl_writes_nothing_outside_its_directory)
{
        char *to = suite_path("to-links"), *elsewhere = suite_path("elsewhere");
        make_source();
        must(mkdir(to, 0755));
        must(mkdir(elsewhere, 0755));
        file_write(format_text("%s/victim", elsewhere), "victim", 6);
        must(symlink(elsewhere, format_text("%s/sub", to)));
        must(symlink("../elsewhere/victim", format_text("%s/config.json", to)));
        SAYS(1, "its directory cannot be opened", "fetch", fixture_path("cli"), "sub/more.json", "--directory", to);
        SAYS(2, "not the name of a file", "fetch", fixture_path("cli"), "../config.json", "--directory", to);
        SAYS(2, "not the name of a file", "fetch", fixture_path("cli"), "/config.json", "--directory", to);
        SAYS(0, "config.json", "fetch", fixture_path("cli"), "config.json", "--directory", to);
        assert_file(format_text("%s/config.json", to), "config");
        assert_file(format_text("%s/victim", elsewhere), "victim");
        ck_assert_int_ne(access(format_text("%s/more.json", elsewhere), F_OK), 0);
}

TEST(streamerctl_exits_as_the_error_says)
{
        make_source();
        SAYS(3, "No such file", "fetch", fixture_path("cli"), "none.json", "--directory", suite_path("to-none"));
        SAYS(1, "outside the roots", "fetch", "/etc", "passwd", "--directory", suite_path("to-none"));
        SAYS(3, "lists no files", "fetch", format_text("%s/5/m.safetensors", web.url), "--directory",
             suite_path("to-none"));
        SAYS(2, "takes no files", "fetch", fixture_path("cli"), "config.json", "--list");
        SAYS(1, "cannot be opened", "fetch", fixture_path("cli"), "--directory", suite_path("none/below"));
}
