/* SPDX-License-Identifier: Apache-2.0
 *
 * Attach to a model that is loading, and inconsistent replies, against a scripted daemon.
 */
#include "tests/unit/client_fixture.h"

#include <fcntl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>

/* ---- while it loads ---- */

CLIENT_FIXTURE();

TEST(a_failure_after_the_last_tensor_is_reported)
{
        m.loading = true;
        fake_model_arrive(&m, 0);
        fake_model_arrive(&m, 1);
        fake_model_arrive(&m, 2);
        attach("hello\n" FAKE_ATTACH "* lease lease=7 state=failed code=failed text='the file changed'\n" FAKE_DETACH,
               0);
        int rc;
        while ((rc = streamer_tensor_next(lease, -1, &t)) == 0)
                ;
        FAILS(client, rc, STREAMER_EFAILED, "the file changed");
        ck_assert_str_eq(streamer_digest(lease), "");
}

TEST(a_daemon_lost_during_a_load_is_reported_after_the_arrived_tensors)
{
        m.loading = true;
        fake_model_arrive(&m, 1);
        attach("hello\n" FAKE_ATTACH "end\n", 0);
        const streamer_client *closed = client;
        disconnect();
        ck_assert_int_eq(streamer_tensor_next(lease, -1, &t), 0);
        FAILS(closed, streamer_tensor_next(lease, -1, &t), STREAMER_EUNREACHABLE, "the connection was closed");
}

/* The next daemon's first lease has the number of the one before. */
TEST(events_of_an_earlier_daemons_lease_are_ignored)
{
        m.loading = true;
        attach("hello\n" FAKE_ATTACH "close\nhello\n> reclaim\n! lost not held\n" FAKE_ATTACH FAKE_READY FAKE_DETACH,
               0);
        streamer_lease *lost = lease;
        FAILS(client, streamer_tensor_next(lost, -1, &t), STREAMER_ELOST, "the daemon exited, and the load ended");
        for (uint32_t i = 0; i < 3; i++)
                fake_model_arrive(&m, i);
        ck_assert_int_eq(streamer_attach(client, "m", NULL, &lease), 0);
        for (int i = 0; i < 3; i++)
                ck_assert_int_eq(streamer_tensor_next(lease, -1, &t), 0);
        ck_assert_int_eq(streamer_tensor_next(lease, -1, &t), STREAMER_EEND);
        ck_assert_int_eq(streamer_tensor_next(lost, 0, &t), STREAMER_ELOST);
        ck_assert_str_eq(streamer_digest(lost), "");
        streamer_detach(lost);
}

TEST(an_inconsistent_arrival_log_is_corrupt)
{
        m.loading = true;
        fake_model_arrive(&m, 3);
        attach(SERVE, 0);
        ck_assert_int_eq(streamer_tensor_next(lease, 0, &t), STREAMER_ECORRUPT);
        ck_assert_int_eq(streamer_tensor_get(lease, 0, &t), STREAMER_ECORRUPT);
        __atomic_store_n(&m.arrival->count, 4, __ATOMIC_RELEASE);
        ck_assert_int_eq(streamer_tensor_next(lease, 0, &t), STREAMER_ECORRUPT);
}

/* ---- an invalid reply ---- */

static void unknown_version(void)
{
        m.manifest->version = 99;
}

static void other_log(void)
{
        m.loading = true;
        m.arrival->capacity = 2;
}

static const struct {
        const char *kind;
        uint64_t segment_size;
        unsigned n_segments;
        void (*damage)(void);
        int code;
        const char *text;
} invalid[] = {
        {"carrier-pigeon", 0, 0, NULL, STREAMER_EUNSUPPORTED,
         "attach: this library cannot map handles of kind 'carrier-pigeon'"},
        {NULL, FAKE_SEGMENT + 4096, 0, NULL, STREAMER_ECORRUPT, "segment: 8192 bytes were announced, 4096 are there"},
        {NULL, 64, 0, NULL, STREAMER_ECORRUPT, "attach: a segment is smaller than the manifest says"},
        {NULL, 0, 2, NULL, STREAMER_ECORRUPT, "attach: the manifest has other segments than the reply"},
        {NULL, 0, 0, unknown_version, STREAMER_ECORRUPT, "manifest: unknown version of the manifest"},
        {NULL, 0, 0, other_log, STREAMER_ECORRUPT, "arrival log: it does not fit the manifest"},
};

/* The lease is given back. */
TEST(an_invalid_reply_fails_the_attach, EACH(invalid))
{
        m.kind = invalid[_i].kind ?: m.kind;
        m.segment_size = invalid[_i].segment_size ?: m.segment_size;
        m.n_segments = invalid[_i].n_segments ?: m.n_segments;
        if (invalid[_i].damage != NULL)
                invalid[_i].damage();
        client = fake_connect(&fake, SERVE);
        FAILS(client, streamer_attach(client, "m", NULL, &lease), invalid[_i].code, invalid[_i].text);
}

static int unsealed(int sealed)
{
        struct stat st;
        must(fstat(sealed, &st));
        int fd = must(memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
        must(ftruncate(fd, st.st_size));
        must(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW));
        ck_assert_int_eq(sendfile(fd, sealed, &(off_t){0}, (size_t)st.st_size), st.st_size);
        return fd;
}

static int ordinary_file(int sealed)
{
        struct stat st;
        must(fstat(sealed, &st));
        int fd = must(open(suite_path("file-%d", (int)getpid()), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
        must(ftruncate(fd, st.st_size));
        ck_assert_int_eq(sendfile(fd, sealed, &(off_t){0}, (size_t)st.st_size), st.st_size);
        return fd;
}

static const struct {
        const char *what; /* as it is numbered in the reply */
        int (*instead)(int sealed);
} cuttable[] = {{"manifest", unsealed},      {"segment", unsealed},      {"arrival log", unsealed},
                {"manifest", ordinary_file}, {"segment", ordinary_file}, {"arrival log", ordinary_file}};

/* Once it is mapped, a daemon could make it smaller, and reading it would end this process. */
TEST(memory_that_can_be_cut_is_not_mapped, EACH(cuttable))
{
        int *fd = &m.fds[_i % 3];
        m.loading = true;
        *fd = cuttable[_i].instead(*fd);
        client = fake_connect(&fake, SERVE);
        FAILS(client, streamer_attach(client, "m", NULL, &lease), STREAMER_EPROTO,
              format_text("%s: the daemon sent memory that is not sealed against shrinking", cuttable[_i].what));
}

TEST(a_corrupt_record_is_an_error_and_never_a_pointer)
{
        m.records[1].offset = UINT64_MAX;
        attach(SERVE, 0);
        ck_assert_int_eq(streamer_tensor_get(lease, 0, &t), 0);
        FAILS(client, streamer_tensor_get(lease, 1, &t), STREAMER_ECORRUPT,
              "tensor 1: a record lies outside its segment");
}

TEST(a_corrupt_pair_of_metadata_is_an_error)
{
        const char *key, *value;
        struct manifest_pair *pair = (void *)((unsigned char *)m.manifest + m.manifest->metadata_off);
        pair->value_off = m.manifest->strings_len;
        attach(SERVE, 0);
        FAILS(client, streamer_metadata_get(lease, 0, &key, &value), STREAMER_ECORRUPT,
              "metadata 0: a text is out of bounds");
}

/* ---- an invalid table of a published model ---- */

#define TABLE_MAX (UINT64_C(256) << 20)

/* The second tensor has the table's name. */
static void name_table(void)
{
        memcpy((unsigned char *)m.manifest + m.manifest->strings_off, "streamerd.table", 16);
        m.records[1].name_off = 0;
        m.records[1].name_len = 15;
}

static void move_table(void)
{
        m.records[1].offset = FAKE_SEGMENT;
}

static void enlarge_table(void)
{
        unsigned char *base = (unsigned char *)m.manifest;
        const uint64_t bytes = TABLE_MAX + 1;
        m.segment_size = 2 * TABLE_MAX;
        must(ftruncate(m.fds[1], (off_t)m.segment_size));
        ((struct manifest_segment *)(void *)(base + m.manifest->segments_off))->size = m.segment_size;
        memcpy(base + m.manifest->shapes_off + sizeof(bytes), &bytes, sizeof(bytes));
        m.records[1].bytes = bytes;
}

static const struct {
        void (*damage)(void); /* NULL: the table is no table */
        const char *text;
} tables[] = {
        {NULL, "the table of the published model: it is too small"},
        {move_table, "the table of the published model: a record lies outside its segment"},
        {enlarge_table, "the table of the published model is out of bounds"},
};

TEST(a_corrupt_table_of_a_published_model_is_an_error, EACH(tables))
{
        size_t n;
        name_table();
        if (tables[_i].damage != NULL)
                tables[_i].damage();
        attach(SERVE, 0);
        FAILS(client, streamer_published_count(lease, &n, NULL, NULL), STREAMER_ECORRUPT, tables[_i].text);
}

/* ---- the connection ---- */

TEST(missing_descriptors_end_the_connection)
{
        m.loading = true;
        m.n_fds = 2;
        client = fake_connect(&fake, "hello\n" FAKE_ATTACH "end\n");
        FAILS(client, streamer_attach(client, "m", NULL, &lease), STREAMER_EPROTO,
              "the daemon named descriptors that did not come");
}

TEST(attach_sends_its_timeout)
{
        streamer_attach_opts opts = {.struct_size = sizeof(opts), .timeout_ms = 40000};
        fake_start(&fake, "hello\n"
                          "> attach timeout_ms=40000\n! timeout m: still loading\n"
                          "> attach timeout_ms=20000\n! timeout m: still loading\n"
                          "> attach timeout_ms=0\n! timeout m: still loading\n");
        streamer_connect_opts options = {.struct_size = sizeof(options), .socket = fake.socket, .timeout_ms = 20000};
        ck_assert_int_eq(streamer_connect(&options, &client), 0);
        FAILS(client, streamer_attach(client, "m", &opts, &lease), STREAMER_ETIMEOUT, "m: still loading");
        ck_assert_int_eq(streamer_attach(client, "m", NULL, &lease), STREAMER_ETIMEOUT);
        opts.timeout_ms = -1;
        ck_assert_int_eq(streamer_attach(client, "m", &opts, &lease), STREAMER_ETIMEOUT);
}

TEST(a_late_attach_is_released)
{
        streamer_attach_opts opts = {.struct_size = sizeof(opts), .timeout_ms = 1};
        client = fake_connect(&fake, "hello\n> attach\n> ping\n<1 model\n" FAKE_DETACH "<1\n");
        ck_assert_int_eq(streamer_attach(client, "m", &opts, &lease), STREAMER_ETIMEOUT);
        unsigned before = count_open_fds();
        ck_assert_int_eq(streamer_call(client, "ping", NULL, NULL), 0);
        ck_assert_uint_eq(count_open_fds(), before);
}
