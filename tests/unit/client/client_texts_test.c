/* SPDX-License-Identifier: Apache-2.0
 *
 * Texts of failures that the library finds itself: of wrong arguments, and of replies that lack a field.
 */
#include "client/channel.h"
#include "tests/unit/client_fixture.h"

/* ---- arguments: no request is sent ---- */

CLIENT_FIXTURE();

TEST(an_open_refuses_what_it_sets_itself)
{
        streamer_op *op;
        streamer_load_opts load = STREAMER_LOAD_OPTS_INIT;
        streamer_attach_opts how = STREAMER_ATTACH_OPTS_INIT;
        streamer_open_opts opts = STREAMER_OPEN_OPTS_INIT;
        client = fake_connect(&fake, "hello\nend\n");
        opts.load = &load;
        load.flags = STREAMER_LOAD_DETACH;
        FAILS(client, streamer_open_start(client, "/m", &opts, &op), STREAMER_EINVAL,
              "open_start: 'opts->load' must not have STREAMER_LOAD_DETACH");
        load.flags = 0;
        opts.attach = &how;
        how.digest = "12";
        FAILS(client, streamer_open_start(client, "/m", &opts, &op), STREAMER_EINVAL,
              "open_start: 'opts->attach->digest' must have 32 hexadecimal digits");
        how.digest = NULL;
        how.generation = 1;
        FAILS(client, streamer_open_start(client, "/m", &opts, &op), STREAMER_EINVAL,
              "open_start: a generation can be required of a name only");
}

TEST(a_source_must_be_utf8)
{
        char *list;
        client = fake_connect(&fake, "hello\nend\n");
        FAILS(client, streamer_fetch_list(client, "\xff", &list), STREAMER_EINVAL,
              "fetch: the source is not valid UTF-8: \\xff");
}

/* ---- replies ---- */

TEST(a_load_without_an_operation_is_a_protocol_error)
{
        streamer_op *op;
        streamer_load_opts opts = STREAMER_LOAD_OPTS_INIT;
        client = fake_connect(&fake, "hello\n> load\n<\nend\n");
        opts.source = "/m";
        FAILS(client, streamer_load(client, &opts, &op), STREAMER_EPROTO, "load: the daemon's reply has no operation");
}

TEST(an_attach_without_a_lease_is_a_protocol_error)
{
        client = fake_connect(&fake, "hello\n> attach\n<\nend\n");
        ck_assert_int_eq(streamer_attach(client, "m", NULL, &lease), STREAMER_EPROTO);
        ck_assert_ptr_nonnull(strstr(streamer_last_error(client), "attach: the daemon's reply has no valid "));
}

TEST(a_claim_without_its_fields_is_a_protocol_error)
{
        streamer_publication *claim;
        streamer_found found = STREAMER_FOUND_INIT;
        const char *key[101];
        streamer_publish_opts opts = STREAMER_PUBLISH_OPTS_INIT;
        /* A claim that cannot be used is returned. */
        client = fake_connect(&fake, "hello\n> publish_find\n<\n"
                                     "> publish_find\n< state=absent claim=7\n"
                                     "> publish_abort claim=7\n"
                                     "> publish_find\n< state=absent claim=8 granularity=4096 small=2048 page=100\n"
                                     "> publish_abort claim=8\n"
                                     "> publish_find\n< state=absent claim=9 granularity=4096 small=2048\n"
                                     "> publish_abort claim=9\n"
                                     "> publish_find\n< state=absent claim=10 granularity=4096 small=8192 page=256\n"
                                     "> publish_abort claim=10\nend\n");
        for (size_t i = 0; i < 101; i++)
                key[i] = "k=v";
        opts.name = "m";
        opts.key = key;
        opts.n_key = 101;
        FAILS(client, streamer_publish_find(client, &opts, &found, &claim), STREAMER_EINVAL,
              "publish_find: a key has 100 fields at most");
        opts.n_key = 1;
        FAILS(client, streamer_publish_find(client, &opts, &found, &claim), STREAMER_EPROTO,
              "publish_find: the daemon's reply has no valid state");
        FAILS(client, streamer_publish_find(client, &opts, &found, &claim), STREAMER_EPROTO,
              "publish_find: the daemon's reply has no valid granularity");
        for (int i = 0; i < 3; i++)
                FAILS(client, streamer_publish_find(client, &opts, &found, &claim), STREAMER_EPROTO,
                      "publish_find: the daemon's reply has no valid page");
}

TEST(a_file_that_is_incomplete_is_a_protocol_error)
{
        void *data;
        uint64_t size;
        client = fake_connect(&fake, "hello\n> fetch\n< size=8 data=#4142\nend\n");
        FAILS(client, streamer_fetch(client, "/m", "f", &data, &size), STREAMER_EPROTO,
              "fetch: the daemon sent 2 of 8 bytes");
}

/* The socket takes a part of the first request, and the daemon reads none. */
TEST(requests_that_the_daemon_does_not_read_are_limited)
{
        enum { SIZE = 1000000 };
        char *name = must_alloc(SIZE + 1);
        memset(name, 'x', SIZE);
        name[SIZE] = '\0';
        char *args = format_text("{\"model\":\"%s\"}", name);
        client = fake_connect(&fake, "hello\npause\n");
        client->timeout_ms = 1; /* not of the connect */
        for (int i = 0; i < 2; i++) {
                ck_assert_int_eq(streamer_call(client, "pin", args, NULL), STREAMER_ETIMEOUT);
                ck_assert_ptr_nonnull(strstr(streamer_last_error(client), "no reply in time: "));
        }
        CALL_FAILS(client, "pin", args, STREAMER_ETIMEOUT,
                   "the daemon takes no more requests: too many are unanswered");
        fake_resume(&fake);
}

/* ---- replies to a publisher ---- */

#define FIND "> publish_find\n< state=absent claim=7 granularity=4096\n"
#define BEGIN "> publish_begin claim=7\n< lease=7 generation=42 device_kind=host\n"
#define ABORT "> publish_abort claim=7\n> detach lease=7\n<\nend\n"
#define SEGMENT_BYTES (1 << 20)

static streamer_publication *claim_of(const char *text)
{
        streamer_publication *claim;
        streamer_found found = STREAMER_FOUND_INIT;
        streamer_publish_opts opts = STREAMER_PUBLISH_OPTS_INIT;
        opts.name = "m";
        client = fake_connect(&fake, text);
        ck_assert_int_eq(streamer_publish_find(client, &opts, &found, &claim), 0);
        return claim;
}

static const uint64_t storage_bytes = 100;

static streamer_publication *memory_of(const char *text)
{
        streamer_publication *claim = claim_of(text);
        ck_assert_int_eq(streamer_publish_begin(claim, &storage_bytes, 1), 0);
        return claim;
}

/* In whole pages of the daemon. Each has its table, 514 KiB, at the next page of this process. An older daemon has no
 * small pages for a publisher. */
static const struct size_row {
        uint64_t bytes;
        const char *pages;
        uint64_t page;
} reserved_sizes[] = {
        {100, "granularity=2097152", 2 << 20},
        {100, "granularity=2097152 page=4096 small=1048576", 4 << 10},
        {3000, "granularity=536870912 page=65536 small=268435456", 64 << 10},
        {300 << 20, "granularity=536870912 page=65536 small=268435456", 512 << 20},
};

static uint64_t round_up(uint64_t n, uint64_t to)
{
        return (n + to - 1) / to * to;
}

TEST(memory_is_reserved_in_the_pages_that_the_daemon_has, EACH(reserved_sizes))
{
        const struct size_row *row = &reserved_sizes[_i];
        uint64_t table_at = round_up(row->bytes, (uint64_t)sysconf(_SC_PAGESIZE));
        uint64_t reserved = round_up(table_at + (514 << 10), row->page);
        char *text = format_text("hello\n> publish_find\n< state=absent claim=7 %s\n"
                                 "> publish_begin claim=7 bytes=%llu\n< lease=7 generation=42 device_kind=host\n" ABORT,
                                 row->pages, (unsigned long long)reserved);
        streamer_publication *claim = claim_of(text);
        ck_assert_int_eq(streamer_publish_begin(claim, &row->bytes, 1), 0);
        streamer_publish_abort(claim);
}

TEST(memory_without_a_lease_is_a_protocol_error)
{
        streamer_publication *claim =
                claim_of("hello\n" FIND "> publish_begin claim=7\n<\n> publish_abort claim=7\nend\n");
        FAILS(client, streamer_publish_begin(claim, &storage_bytes, 1), STREAMER_EPROTO,
              "publish_begin: the daemon's reply has no valid lease");
        streamer_publish_abort(claim);
}

TEST(a_segment_that_cannot_be_mapped_is_refused)
{
        void *data;
        streamer_publication *claim = memory_of("hello\n" FIND BEGIN "> publish_segment claim=7\n<\n"
                                                "> publish_segment claim=7\n"
                                                "< number=0 segment={kind=paper size=1048576}\n" ABORT);
        FAILS(client, streamer_publish_storage(claim, 0, &data), STREAMER_EPROTO,
              "publish_segment: the daemon's reply has no valid segment");
        FAILS(client, streamer_publish_storage(claim, 0, &data), STREAMER_EUNSUPPORTED,
              "publish_segment: this library cannot publish in memory of kind 'paper'");
        streamer_publish_abort(claim);
}

/* The manifest is the model's; the memory is the segment's, for writing and for reading. */
#define PUBLISH                                                                                                        \
        "hello\n" FIND BEGIN "> publish_segment claim=7\nwith 1 1\n"                                                   \
        "< number=0 segment={kind=memfd size=1048576 fd=0} reading={fd=1}\n> publish_commit claim=7\nwith 0\n"         \
        "< generation=42 state=ready manifest={fd=0 size=%llu}\n" ABORT

static void drop_segment(void)
{
        m.manifest->n_segments = 0;
}

static void enlarge_segment(void)
{
        unsigned char *base = (unsigned char *)m.manifest;
        ((struct manifest_segment *)(void *)(base + m.manifest->segments_off))->size = SEGMENT_BYTES + 1;
}

static const struct {
        void (*damage)(void);
        const char *text;
} manifests[] = {
        {drop_segment, "publish_commit: the manifest has other segments"},
        {enlarge_segment, "publish_commit: a segment is smaller than the manifest says"},
};

/* The descriptor for reading takes the place of the one that was written to. */
TEST(memory_for_reading_that_can_be_cut_is_not_mapped)
{
        void *data;
        must(ftruncate(m.fds[1], SEGMENT_BYTES));
        m.fds[2] = must(memfd_create("unsealed", MFD_CLOEXEC));
        must(ftruncate(m.fds[2], SEGMENT_BYTES));
        streamer_publication *claim =
                memory_of("hello\n" FIND BEGIN "> publish_segment claim=7\nwith 1 2\n"
                          "< number=0 segment={kind=memfd size=1048576 fd=0} reading={fd=1}\n" ABORT);
        ck_assert_int_eq(streamer_publish_storage(claim, 0, &data), 0);
        FAILS(client, streamer_publish_commit(claim, &lease), STREAMER_EPROTO,
              "publish: the daemon sent memory that is not sealed against shrinking");
        streamer_publish_abort(claim);
}

TEST(a_commit_whose_manifest_is_of_other_memory_is_corrupt, EACH(manifests))
{
        void *data;
        must(ftruncate(m.fds[1], SEGMENT_BYTES));
        manifests[_i].damage();
        streamer_publication *claim = memory_of(format_text(PUBLISH, (unsigned long long)m.manifest->size));
        ck_assert_int_eq(streamer_publish_storage(claim, 0, &data), 0);
        FAILS(client, streamer_publish_commit(claim, &lease), STREAMER_ECORRUPT, manifests[_i].text);
        streamer_publish_abort(claim);
}
