/* SPDX-License-Identifier: Apache-2.0
 *
 * What is persisted has no signature of a URL, and no descriptor of a restored model shows a client who loaded it.
 */
#include "tests/lib/endpoint.h"
#include "tests/lib/managed_daemon.h"
#include "tests/lib/snapshots.h"
#include "tests/lib/suite.h"
#include "tests/lib/wire.h"

#define SIGNATURE "X-Signature=TOPSECRET"

static struct endpoint web;
static char *source_data;
static size_t source_size;
static const char *state;

static void answer(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        reply->headers = format_text("ETag: \"1\"\r\n");
        endpoint_range(request, reply, source_data, source_size);
}

static const char *const *flags(void)
{
        static const char *all[] = {"--device", "host=64MiB", "--root", NULL, "--state", NULL, NULL};
        all[3] = suite_path("root");
        all[5] = state;
        return all;
}

static void begin(void)
{
        mkdir(suite_path("root"), 0755);
        state = suite_path("state-%d", (int)getpid());
        must(mkdir(state, 0700));
        managed.model = model_mixed(91, 1 << 20);
        model_write(managed.model, suite_path("root/m.safetensors"));
        source_data = file_read(suite_path("root/m.safetensors"), &source_size);
        web.answer = answer;
        endpoint_start(&web);
        manager_init(&managed.m, suite_path("d"), MANAGED_STORE, flags());
        manager_start(&managed.m);
        client = client_open(&managed.m.d);
}

static void end(void)
{
        streamer_close(client);
        manager_deinit(&managed.m);
}

/* Pinned. */
static void load_signed(const char *name)
{
        const char *url = format_text("%s/m.safetensors?" SIGNATURE, web.url);
        client_ok(
                client,
                client_load_with(client, (streamer_load_opts){.source = url, .name = name, .flags = STREAMER_LOAD_PIN}),
                "load");
        manager_wait(&managed.m, MANAGED_MODELS, 2);
}

/* The bytes of a descriptor, whatever size the reply of attach names. */
static void has_no_facts(int fd)
{
        struct stat st;
        must(fstat(fd, &st));
        char *bytes = malloc((size_t)st.st_size + 1);
        ck_assert_int_eq(pread(fd, bytes, (size_t)st.st_size, 0), st.st_size);
        ck_assert_ptr_null(memmem(bytes, (size_t)st.st_size, "TOPSECRET", 9));
        ck_assert_ptr_null(memmem(bytes, (size_t)st.st_size, "groups", 6));
        ck_assert_ptr_null(memmem(bytes, (size_t)st.st_size, "identity", 8));
        free(bytes);
}

/* Those that the reply to an attach carries. */
static unsigned check_descriptors(const char *name)
{
        struct wire w;
        char bytes[65536], control[CMSG_SPACE(64 * sizeof(int))];
        struct iovec part = {bytes, sizeof(bytes)};
        struct msghdr message = {
                .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
        unsigned n = 0;
        wire_connect(&w, &managed.m.d);
        wire_verb(&w, "attach", 2, "model", name);
        ck_assert_int_gt(recvmsg(w.fd, &message, MSG_CMSG_CLOEXEC), 0);
        for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c != NULL; c = CMSG_NXTHDR(&message, c))
                for (size_t at = 0; CMSG_LEN(at + sizeof(int)) <= c->cmsg_len; at += sizeof(int), n++) {
                        int fd;
                        memcpy(&fd, CMSG_DATA(c) + at, sizeof(fd));
                        has_no_facts(fd);
                        close(fd);
                }
        wire_close(&w);
        return n;
}

FIXTURE(.each = {begin, end});

TEST(the_descriptors_of_a_model_show_no_facts_of_its_loader_after_a_restart, .to = 2)
{
        load_signed("m");
        ck_assert_uint_eq(check_descriptors("m"), 2);
        for (int runs = 0; runs < 2; runs++) {
                managed_restart_and_reconnect(_i);
                client_equals(client, "m", managed.model);
                ck_assert_uint_eq(check_descriptors("m"), 2);
        }
}

static bool file_is_written(void)
{
        struct snapshot snapshot;
        struct error error;
        int r = snapshot_load(&snapshot, state, &error);
        snapshot_deinit(&snapshot);
        return r == 0;
}

static bool fd_has(int fd, const char *text)
{
        size_t size;
        char *bytes = file_read(format_text("/proc/self/fd/%d", fd), &size);
        bool has = memmem(bytes, size, text, strlen(text)) != NULL;
        free(bytes);
        return has;
}

TEST(nothing_that_is_persisted_has_the_query_of_a_url)
{
        load_signed("m");
        AWAIT(file_is_written());
        managed_restart_and_reconnect(0);
        size_t size;
        char *bytes = file_read(format_text("%s/state", state), &size);
        ck_assert_ptr_null(memmem(bytes, size, "TOPSECRET", 9));
        for (size_t i = 0; i < managed.m.n; i++)
                ck_assert_msg(!fd_has(managed.m.store[i].fd, "TOPSECRET"), "%s", managed.m.store[i].name);
        ck_assert_ptr_nonnull(strstr(json_text(client_show(client, "m"), "source"), "/m.safetensors"));
}

/* After a reboot: the URL without its query is another one. */
TEST(a_pinned_model_whose_url_had_a_query_is_not_loaded_again)
{
        load_signed("m");
        manager_stop(&managed.m);
        while (managed.m.n > 0)
                manager_drop(&managed.m, &managed.m.store[0]);
        unsigned requests = web.requests;
        manager_start(&managed.m);
        managed_reconnect();
        ck_assert(log_wait_for(managed.m.d.log, "m: was pinned, and is not loaded again: the query of its URL is not "
                                                "persisted"));
        ck_assert_str_eq(client_state(client, "m"), "");
        ck_assert_uint_eq(web.requests, requests);
}
