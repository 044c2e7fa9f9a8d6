/* SPDX-License-Identifier: Apache-2.0
 *
 * The checker's publications: a model is published, or not, read back, replaced under another key and unloaded within
 * one step, so the model of the daemon has it only while the step lasts. It evicts as a load does. Half of them are
 * models of tensors, of which the next one is another generation, and a third one is refused while both are leased.
 */
#include "tests/model/checker_model.h"

#define NAME "published"
#define STORAGES 3u
#define KEYS 3u

/* What is published: all of it follows from the seed. `tensors`: each storage is a tensor of a model without a key. */
struct content {
        uint64_t seed, bytes[STORAGES];
        unsigned key;
        bool tensors;
};

static unsigned char byte_of(const struct content *content, unsigned s, size_t i)
{
        return (unsigned char)(content->seed * 37 + s * 31 + i * 7 + (i >> 8) * 13);
}

static void draw_content(struct checker *c, struct content *content, bool tensors)
{
        content->seed = ++c->last_seed;
        content->tensors = tensors;
        content->key = (unsigned)random_below(c, KEYS);
        content->bytes[0] = random_below(c, UINT64_C(3) << 20);
        content->bytes[1] = random_below(c, 2) * random_below(c, 100000);
        content->bytes[2] = 1 + random_below(c, 1000);
}

static void succeed(const struct checker *c, int r, const char *call)
{
        if (r != 0)
                checker_fail(c, "%s: %s (%s)", call, streamer_strerror(r), streamer_last_error(c->client));
}

/* ---- publishing ---- */

static streamer_publication *search(const struct checker *c, streamer_client *by, const struct content *content,
                                    bool claims, const char *state, streamer_found *found)
{
        static const char *const keys[KEYS][2] = {{"engine=1", "dtype=a"}, {"engine=1", "dtype=b"}, {"engine=2", ""}};
        streamer_publish_opts opts = STREAMER_PUBLISH_OPTS_INIT;
        streamer_publication *claim = NULL;
        *found = (streamer_found)STREAMER_FOUND_INIT;
        opts.name = NAME;
        opts.device = "host";
        if (content->tensors) {
                opts.flags = STREAMER_PUBLISH_TENSORS | (claims ? STREAMER_PUBLISH_REPLACE : 0);
        } else {
                opts.key = keys[content->key];
                opts.n_key = content->key < 2 ? 2 : 1;
        }
        succeed(c, streamer_publish_find(by, &opts, found, claims ? &claim : NULL), "find");
        streamer_free(found->differs);
        if (strcmp(found->state, state) != 0)
                checker_fail(c, NAME ": found to be %s, not %s", found->state, state);
        if (claims != (claim != NULL))
                checker_fail(c, NAME ": was %sclaimed", claims ? "not " : "");
        return claim;
}

static const char *tensor_name(unsigned s)
{
        static const char *const names[STORAGES] = {"weight", "empty or not", "bias"};
        return names[s];
}

static void describe(const struct checker *c, streamer_publication *publication, const struct content *content,
                     unsigned s)
{
        const uint64_t one = 1;
        const streamer_published_tensor t = {.struct_size = sizeof(t),
                                             .name = tensor_name(s),
                                             .dtype = "U8",
                                             .item = 1,
                                             .kind = STREAMER_PUBLISHED_PARAMETER,
                                             .rank = 1,
                                             .shape = &content->bytes[s],
                                             .strides = &one,
                                             .storage = s};
        succeed(c, streamer_publish_tensor(publication, &t), "tensor");
}

/* All but the commit. 0, or STREAMER_ENOMEM. */
static int fill(const struct checker *c, streamer_publication *publication, const struct content *content)
{
        int r = streamer_publish_begin(publication, content->bytes, STORAGES);
        if (r == STREAMER_ENOMEM)
                return r;
        succeed(c, r, "begin");
        for (unsigned s = 0; s < STORAGES; s++) {
                void *data;
                succeed(c, streamer_publish_storage(publication, s, &data), "storage");
                for (size_t i = 0; i < content->bytes[s]; i++)
                        ((unsigned char *)data)[i] = byte_of(content, s, i);
                if (content->tensors)
                        describe(c, publication, content, s);
        }
        return 0;
}

/* A process that fills its publication, and is killed before it commits. */
static void kill_publisher(struct checker *c, const struct content *content)
{
        int done[2];
        char byte = 0;
        must(pipe(done));
        pid_t pid = must(fork());
        if (pid == 0) {
                streamer_found found;
                streamer_client *own = client_open(&c->daemon);
                fill(c, search(c, own, content, true, "absent", &found), content);
                must(write(done[1], &byte, 1));
                for (;;)
                        pause();
        }
        close(done[1]);
        if (read(done[0], &byte, 1) != 1)
                checker_fail(c, "a publisher failed");
        close(done[0]);
        child_kill(pid);
        c->counts->publishers_killed++;
}

/* ---- reading ---- */

static void check_content(const struct checker *c, streamer_lease *lease, const struct content *content)
{
        for (unsigned s = 0; s < STORAGES; s++) {
                streamer_tensor storage = STREAMER_TENSOR_INIT;
                if (content->tensors)
                        succeed(c, streamer_tensor_find(lease, tensor_name(s), &storage), "tensor");
                else
                        succeed(c, streamer_published_storage(lease, s, &storage), "published storage");
                if (storage.bytes != content->bytes[s])
                        checker_fail(c, NAME ": storage %u has %zu bytes", s, (size_t)storage.bytes);
                for (size_t i = 0; i < storage.bytes; i++)
                        if (((const unsigned char *)storage.data)[i] != byte_of(content, s, i))
                                checker_fail(c, NAME ": storage %u differs at %zu", s, i);
        }
}

static streamer_lease *attach(struct checker *c, const struct content *content)
{
        streamer_attach_opts opts = STREAMER_ATTACH_OPTS_INIT;
        streamer_found found;
        streamer_lease *lease;
        search(c, c->client, content, false, "hit", &found);
        opts.generation = found.generation;
        succeed(c, streamer_attach(c->client, NAME, &opts, &lease), "attach");
        check_content(c, lease, content);
        return lease;
}

/* ---- the step ---- */

static uint64_t free_bytes(const struct checker *c, unsigned device)
{
        uint64_t taken = protected_bytes(c, NAMES, device);
        return c->devices[device].budget > taken ? c->devices[device].budget - taken : 0;
}

/* Publishes it, with `old` (NULL: none) under the name so far. NULL: there is no memory, or the publication is given
 * up. */
static streamer_lease *publish(struct checker *c, unsigned user, const struct content *content,
                               const struct content *old, bool commits, uint64_t available)
{
        streamer_found found;
        streamer_lease *lease = NULL;
        const char *state = old == NULL ? "absent" : old->tensors ? "hit" : "mismatch";
        streamer_publication *publication = search(c, c->users[user], content, true, state, &found);
        uint64_t largest = content->bytes[0] + content->bytes[1] + (UINT64_C(4) << 20);
        int r = fill(c, publication, content);
        trail_add(c, "user %u: publish %" PRIu64 " bytes, %s %u: %s, %s", user, content->bytes[0],
                  content->tensors ? "tensors" : "key", content->key, streamer_strerror(r),
                  commits ? "committed" : "aborted");
        if (r == 0 && commits)
                r = streamer_publish_commit(publication, &lease);
        if (r != 0 && (r != STREAMER_ENOMEM || largest < available))
                checker_fail(c, NAME ": %s (%s), and it would fit in %" PRIu64 " bytes", streamer_strerror(r),
                             streamer_last_error(c->users[user]), available);
        if (lease == NULL)
                streamer_publish_abort(publication);
        c->counts->published += lease != NULL;
        c->counts->put += lease != NULL && content->tensors;
        c->counts->publish_aborts += lease == NULL;
        return lease;
}

/* Both generations of its name that may be in memory have leases. */
static void refuse_third(struct checker *c, unsigned user, const struct content *content)
{
        streamer_found found;
        streamer_publication *publication = search(c, c->users[user], content, true, "hit", &found);
        int r = streamer_publish_begin(publication, content->bytes, STORAGES);
        if (r != STREAMER_ELIMIT)
                checker_fail(c, NAME ": a third generation is begun: %s", streamer_strerror(r));
        streamer_publish_abort(publication);
}

void step_publish(struct checker *c)
{
        struct content first, second;
        unsigned device = 0;
        while (c->devices[device].gpu >= 0)
                device++;
        uint64_t available = free_bytes(c, device);
        unsigned course = (unsigned)random_below(c, 4), user = draw_user(c);
        bool tensors = random_below(c, 2) == 0;
        draw_content(c, &first, tensors);
        draw_content(c, &second, tensors);
        second.key = (first.key + 1 + second.key % (KEYS - 1)) % KEYS;
        if (course == 0)
                kill_publisher(c, &first);
        compare(c, true);
        streamer_lease *lease = publish(c, user, &first, NULL, course != 1, available);
        if (lease != NULL) {
                streamer_lease *reader = attach(c, &first), *newer = NULL;
                if (course == 3)
                        newer = publish(c, user, &second, &first, random_below(c, 2) == 0, 0);
                check_content(c, reader, &first);
                if (newer != NULL)
                        check_content(c, newer, &second);
                if (newer != NULL && tensors)
                        refuse_third(c, user, &first);
                c->counts->publish_replaced += newer != NULL;
                streamer_detach(reader);
                streamer_detach(lease);
                streamer_detach(newer);
                /* The publisher's leases may end later: its detaches are on another connection. */
                succeed(c, streamer_unload(c->client, NAME, STREAMER_UNLOAD_DRAIN), "unload");
        }
        compare(c, true);
}
