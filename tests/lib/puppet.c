/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/puppet.h"
#include "tests/lib/base.h"

#include "streamer/client.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define WAIT_MS 30000

enum command { ATTACH, JOIN, DETACH, LOOK, BREAK, BREAK_SILENTLY };

struct order {
        enum command command;
        unsigned slot;
        char model[64], device[32], digest[33]; /* "": none is named */
        uint64_t generation;
};

struct model *puppet_model(uint64_t seed)
{
        struct model *m = model_mixed(seed, (64 + seed * 379 % 3000) << 10);
        char *json = format_text("{\"seed\":\"%" PRIu64 "\"}", seed);
        model_set_metadata(m, json);
        free(json);
        return m;
}

/* ---- the puppet's side ---- */

struct held {
        streamer_lease *lease;
        uint64_t seed;
};

/* Memory of a GPU is read by its driver, that of the host where it lies. */
static bool same_bytes(const struct held *held, const struct model *m, size_t i, const streamer_tensor *t)
{
        if (t->bytes != m->tensors[i].bytes)
                return false;
        if (strcmp(t->device_kind, "host") == 0)
                return model_check(m, i, t->data);
        char *copy = must_alloc(t->bytes + 1);
        bool same = streamer_tensor_read(held->lease, t, 0, copy, t->bytes) == 0 && model_check(m, i, copy);
        free(copy);
        return same;
}

static void compare(const struct held *held, struct puppet_answer *answer)
{
        struct model *m = puppet_model(held->seed);
        streamer_tensor t;
        for (size_t i = 0; i < m->n && !answer->wrong; i++) {
                int r = streamer_tensor_find(held->lease, m->tensors[i].name, &t);
                answer->wrong = r != 0 || !same_bytes(held, m, i, &t);
                if (answer->wrong)
                        snprintf(answer->text, sizeof(answer->text), "generation %" PRIu64 ", seed %" PRIu64 ", %s: %s",
                                 streamer_generation(held->lease), held->seed, m->tensors[i].name,
                                 r != 0 ? streamer_strerror(r) : "its bytes differ");
        }
        model_free(m);
}

/* As they arrive; 0 when all are there. */
static int follow(const struct held *held, struct puppet_answer *answer)
{
        struct model *m = puppet_model(held->seed);
        streamer_tensor t;
        int r;
        while ((r = streamer_tensor_next(held->lease, WAIT_MS, &t)) == 0) {
                size_t i = model_index(m, t.name);
                if (i < m->n && same_bytes(held, m, i, &t))
                        continue;
                answer->wrong = true;
                snprintf(answer->text, sizeof(answer->text), "%.100s, while it loads: its bytes differ", t.name);
                break;
        }
        model_free(m);
        return r == STREAMER_EEND ? 0 : r;
}

static void attach(streamer_client *client, struct held *held, const struct order *order, struct puppet_answer *answer)
{
        streamer_attach_opts opts = {.struct_size = sizeof(opts),
                                     .flags = order->command == JOIN ? 0 : STREAMER_ATTACH_READY,
                                     .device = order->device[0] != '\0' ? order->device : NULL,
                                     .digest = order->digest[0] != '\0' ? order->digest : NULL,
                                     .generation = order->generation,
                                     .timeout_ms = WAIT_MS};
        answer->result = streamer_attach(client, order->model, &opts, &held->lease);
        if (answer->result != 0) {
                snprintf(answer->text, sizeof(answer->text), "%s", streamer_last_error(client));
                return;
        }
        const char *seed = streamer_metadata(held->lease, "seed");
        held->seed = seed != NULL ? strtoull(seed, NULL, 10) : 0;
        answer->seed = held->seed;
        answer->generation = streamer_generation(held->lease);
        if (order->command == JOIN)
                answer->result = follow(held, answer);
        if (answer->result == 0) {
                compare(held, answer);
        } else {
                streamer_detach(held->lease);
                held->lease = NULL;
        }
}

static void look(const struct held *held, unsigned slot, struct puppet_answer *answer)
{
        if (held->lease == NULL || answer->wrong)
                return;
        compare(held, answer);
        int r = streamer_lease_check(held->lease);
        if (r == STREAMER_EREVOKED)
                answer->revoked |= 1u << slot;
        else if (r != 0 && !answer->wrong) {
                answer->wrong = true;
                snprintf(answer->text, sizeof(answer->text), "its lease: %s", streamer_strerror(r));
        }
}

static void obey(streamer_client *client, struct held *held, const struct order *order, struct puppet_answer *answer)
{
        switch (order->command) {
        case ATTACH:
        case JOIN:
                attach(client, &held[order->slot], order, answer);
                break;
        case DETACH:
                compare(&held[order->slot], answer);
                streamer_detach(held[order->slot].lease);
                held[order->slot].lease = NULL;
                break;
        case LOOK:
                for (unsigned i = 0; i < PUPPET_SLOTS; i++)
                        look(&held[i], i, answer);
                break;
        case BREAK:
        case BREAK_SILENTLY:
                must(shutdown(streamer_fd(client), order->command == BREAK ? SHUT_RDWR : SHUT_RD));
                break;
        }
}

static _Noreturn void play(const char *socket, int fd)
{
        streamer_connect_opts opts = {.struct_size = sizeof(opts), .socket = socket, .timeout_ms = WAIT_MS};
        struct held held[PUPPET_SLOTS] = {{0}};
        streamer_client *client = NULL;
        struct order order;
        int r = streamer_connect(&opts, &client);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        while (recv(fd, &order, sizeof(order), 0) == sizeof(order)) {
                struct puppet_answer answer = {.result = r};
                if (r == 0)
                        obey(client, held, &order, &answer);
                if (send(fd, &answer, sizeof(answer), MSG_NOSIGNAL) != sizeof(answer))
                        break;
        }
        _exit(0);
}

/* ---- the test's side ---- */

void puppet_start(struct puppet *puppet, const char *socket)
{
        int fds[2];
        must(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds));
        puppet->pid = must(fork());
        if (puppet->pid == 0) {
                close(fds[0]);
                play(socket, fds[1]);
        }
        close(fds[1]);
        puppet->fd = fds[0];
}

void puppet_kill(struct puppet *puppet)
{
        if (puppet->pid == 0)
                return;
        must(kill(puppet->pid, SIGKILL));
        must(waitpid(puppet->pid, NULL, 0));
        close(puppet->fd);
        *puppet = (struct puppet){.fd = -1};
}

static void tell(struct puppet *puppet, const struct order *order, struct puppet_answer *answer)
{
        if (must(send(puppet->fd, order, sizeof(*order), MSG_NOSIGNAL)) != sizeof(*order) ||
            must(recv(puppet->fd, answer, sizeof(*answer), 0)) != sizeof(*answer))
                die("a client ended by itself");
}

static void tell_wish(struct puppet *puppet, enum command command, unsigned slot, const struct puppet_wish *wish,
                      struct puppet_answer *answer)
{
        struct order order = {.command = command, .slot = slot, .generation = wish->generation};
        snprintf(order.model, sizeof(order.model), "%s", wish->model);
        snprintf(order.device, sizeof(order.device), "%s", wish->device != NULL ? wish->device : "");
        snprintf(order.digest, sizeof(order.digest), "%s", wish->digest != NULL ? wish->digest : "");
        tell(puppet, &order, answer);
}

void puppet_attach(struct puppet *puppet, unsigned slot, const struct puppet_wish *wish, struct puppet_answer *answer)
{
        tell_wish(puppet, ATTACH, slot, wish, answer);
}

void puppet_join(struct puppet *puppet, unsigned slot, const struct puppet_wish *wish, struct puppet_answer *answer)
{
        tell_wish(puppet, JOIN, slot, wish, answer);
}

void puppet_detach(struct puppet *puppet, unsigned slot, struct puppet_answer *answer)
{
        tell(puppet, &(struct order){.command = DETACH, .slot = slot}, answer);
}

void puppet_break(struct puppet *puppet, bool silent, struct puppet_answer *answer)
{
        tell(puppet, &(struct order){.command = silent ? BREAK_SILENTLY : BREAK}, answer);
}

void puppet_look(struct puppet *puppet, struct puppet_answer *answer)
{
        tell(puppet, &(struct order){.command = LOOK}, answer);
}
