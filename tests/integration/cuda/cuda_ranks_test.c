/* SPDX-License-Identifier: Apache-2.0
 *
 * A model of several ranks on fake GPUs: each rank is on its own device, and they load, fail and unload together.
 */
#include "tests/lib/streamerctl.h"
#include "tests/lib/gpu_fixture.h"
#include "tests/lib/suite.h"

#define RANKS 4

/* The same names in each, other contents; the third rank has two parts. */
static struct model *rank_model(uint64_t rank)
{
        struct model *m = model_new(100 + rank);
        model_add(m, "embed", "BF16", (uint64_t[]){1000, 64 + rank}, 2);
        model_add_many(m, "layer", 20, 100000);
        return m;
}

static struct model *rank_part(uint64_t rank)
{
        struct model *m = model_new(200 + rank);
        model_add_many(m, "more", 3, 50000);
        return m;
}

static char *write_ranks(const char *folder_name, size_t n)
{
        char *folder = suite_path("%s-%d", folder_name, (int)getpid());
        mkdir(folder, 0755);
        for (size_t r = 0; r < n; r++) {
                struct model *m = rank_model(r), *part = rank_part(r);
                char *path = format_text("%s/model-rank-%zu-part-0.safetensors", folder, r);
                char *second = format_text("%s/model-rank-%zu-part-1.safetensors", folder, r);
                model_write(m, path);
                if (r == 2)
                        model_write(part, second);
                free(path);
                free(second);
                model_free(m);
                model_free(part);
        }
        return folder;
}

static void tensor_is(const streamer_lease *lease, const struct model *m, size_t i)
{
        streamer_tensor t = STREAMER_TENSOR_INIT;
        ck_assert_int_eq(streamer_tensor_find(lease, m->tensors[i].name, &t), 0);
        unsigned char *bytes = must_alloc(t.bytes);
        ck_assert_uint_eq(t.bytes, m->tensors[i].bytes);
        ck_assert_int_eq(streamer_tensor_read(lease, &t, 0, bytes, t.bytes), 0);
        ck_assert(model_check(m, i, bytes));
        free(bytes);
}

/* A consumer of one rank, in its own process. */
static pid_t consume(size_t rank)
{
        pid_t pid = must(fork());
        if (pid != 0)
                return pid;
        streamer_client *c = client_open(&test_daemon);
        streamer_lease *lease = client_attach_on(c, "m", cuda_devices[rank]);
        struct model *m = rank_model(rank), *part = rank_part(rank);
        size_t n = 0;
        streamer_tensor_count(lease, &n);
        ck_assert_uint_eq(n, m->n + (rank == 2 ? part->n : 0));
        for (size_t i = 0; i < m->n; i++)
                tensor_is(lease, m, i);
        for (size_t i = 0; rank == 2 && i < part->n; i++)
                tensor_is(lease, part, i);
        streamer_detach(lease);
        _exit(0);
}

FIXTURE(.each = {gpu_begin_four, fixture_stop});

TEST(each_rank_is_on_its_own_device)
{
        pid_t pids[RANKS];
        int status;

        ck_assert_int_eq(load_on(write_ranks("ranks", RANKS), "m", cuda_devices, RANKS, "rank"), 0);
        for (size_t r = 0; r < RANKS; r++)
                pids[r] = consume(r);
        for (size_t r = 0; r < RANKS; r++) {
                must(waitpid(pids[r], &status, 0));
                ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "rank %zu", r);
        }
        json_t *model = list_entry(), *devices = json_object_get(model, "devices");
        struct model *last = rank_model(3);
        char digest[33];
        model_digest(last, digest);
        ck_assert_uint_eq(json_array_size(devices), RANKS);
        ck_assert_str_eq(json_text(model, "digest"), ""); /* each rank has its own */
        ck_assert_str_eq(json_text(json_array_get(devices, 3), "digest"), digest);
        ck_assert_uint_eq(json_number(json_array_get(devices, 3), "rank"), 3);
        ck_assert_uint_eq(json_number(model, "tensors"), RANKS * last->n + 3);
        json_decref(client_call(client, "verify", "{\"model\":\"m\"}"));
}

/* Loop test: the device that fails. */
TEST(ranks_succeed_or_fail_together, .to = GPUS)
{
        char *folder = write_ranks("ranks", RANKS);

        gpus->broken[_i] = 700;
        ck_assert_int_eq(load_on(folder, "m", cuda_devices, RANKS, "rank"), STREAMER_EFAILED);
        char *which = format_text("rank %d: cuda:%d", _i, _i);
        ck_assert_msg(strstr(streamer_last_error(client), which) != NULL, "%s", streamer_last_error(client));
        for (int i = 0; i < GPUS; i++) {
                ck_assert_int_eq(attach_code(cuda_devices[i]), STREAMER_EFAILED);
                wait_until_freed(cuda_devices[i]);
        }
}

TEST(ranks_by_the_command_line)
{
        struct ctl r;
        char *folder = write_ranks("ranks", 2);

        ctl(&r, test_daemon.socket, "load", folder, "--name", "m", "--layout", "rank", "--device", "1,0", NULL);
        ck_assert_msg(r.code == 0, "%s", r.err);
        ctl_free(&r);
        ctl(&r, test_daemon.socket, "show", "m", NULL);
        ck_assert_msg(strstr(r.out, "rank 0") < strstr(r.out, "rank 1"), "%s", r.out);
        ck_assert_ptr_nonnull(strstr(r.out, "cuda:1"));
}

TEST(ranks_are_not_compared_with_a_source)
{
        char *folder = write_ranks("ranks", 2), *args = format_text("{\"model\":\"m\",\"source\":\"%s\"}", folder);
        ck_assert_int_eq(load_on(folder, "m", cuda_devices, 2, "rank"), 0);
        ck_assert_int_eq(client_call_code(client, "diff", args), STREAMER_EUNSUPPORTED);
        ck_assert_str_eq(streamer_last_error(client), "m: models of ranks are not compared");
}

/* Errors of sources with ranks, and of requests for them. */
TEST(an_incomplete_set_of_ranks_is_refused)
{
        static const struct {
                size_t ranks, devices;
                const char *layout, *pattern, *says;
                int code;
        } wrong[] = {
                {3, 4, "rank", NULL, "3 ranks for 4 devices", 1},
                {3, 2, "rank", NULL, "3 ranks for 2 devices", 1},
                {2, 2, "rank", "weights-{rank}.safetensors", "no file's name is like", 1},
                {2, 2, "rank", "weights.safetensors", "{rank} must stand in it once", 2},
                {2, 2, "row", NULL, "neither replica nor rank", 2},
                {2, 2, "replica", "model-rank-{rank}-part-{part}.safetensors", "only the layout 'rank'", 2},
        };
        for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
                struct ctl r;
                char *name = format_text("wrong-%zu", i), *device = format_text("0,1,2,3");
                device[2 * wrong[i].devices - 1] = '\0';
                ctl(&r, test_daemon.socket, "load", write_ranks(name, wrong[i].ranks), "--device", device, "--layout",
                    wrong[i].layout, wrong[i].pattern != NULL ? "--pattern" : NULL, wrong[i].pattern, NULL);
                ck_assert_msg(strstr(r.err, wrong[i].says) != NULL, "%s", r.err);
                ck_assert_int_eq(r.code, wrong[i].code);
                ctl_free(&r);
                free(device);
                free(name);
        }
}
