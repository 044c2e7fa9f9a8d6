/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/client_process.h"
#include "tests/lib/base.h"
#include "tests/lib/fixture.h"

#include "streamer/client.h"

#include <sys/prctl.h>
#include <sys/socket.h>

enum verb { ATTACH, ATTACH_LOADING, DETACH, RECHECK, BREAK, BREAK_UNNOTICED };

struct request {
        enum verb verb;
        unsigned slot;
        char model[64], device[32], digest[33]; /* "": any */
        uint64_t generation;
};

struct model *seeded_model(uint64_t seed)
{
        struct model *m = model_mixed(seed, (64 + seed * 379 % 3000) << 10);
        cleanup_free char *json = format_text("{\"seed\":\"%" PRIu64 "\"}", seed);
        model_set_metadata(m, json);
        return m;
}

/* ---- the client process ---- */

struct slot_lease {
        streamer_lease *lease;
        uint64_t seed;
};

/* GPU memory is read through a copy, host memory in place. */
static bool same_bytes(const struct slot_lease *held, const struct model *m, size_t i, const streamer_tensor *t)
{
        if (t->bytes != m->tensors[i].bytes)
                return false;
        if (strcmp(t->device_kind, "host") == 0)
                return model_check(m, i, t->data);
        cleanup_free char *copy = must_alloc(t->bytes + 1);
        return streamer_tensor_read(held->lease, t, 0, copy, t->bytes) == 0 && model_check(m, i, copy);
}

static void check_contents(const struct slot_lease *held, struct client_answer *answer)
{
        struct model *m = seeded_model(held->seed);
        streamer_tensor t = STREAMER_TENSOR_INIT;
        for (size_t i = 0; i < m->n && !answer->mismatch; i++) {
                int r = streamer_tensor_find(held->lease, m->tensors[i].name, &t);
                answer->mismatch = r != 0 || !same_bytes(held, m, i, &t);
                if (answer->mismatch)
                        snprintf(answer->text, sizeof(answer->text), "generation %" PRIu64 ", seed %" PRIu64 ", %s: %s",
                                 streamer_generation(held->lease), held->seed, m->tensors[i].name,
                                 r != 0 ? streamer_strerror(r) : "its bytes differ");
        }
        model_free(m);
}

/* Compares the tensors as they arrive; 0 when all have arrived. */
static int check_arriving(const struct slot_lease *held, struct client_answer *answer)
{
        struct model *m = seeded_model(held->seed);
        streamer_tensor t = STREAMER_TENSOR_INIT;
        int r;
        while ((r = streamer_tensor_next(held->lease, PATIENCE_MS, &t)) == 0) {
                size_t i = model_index(m, t.name);
                if (i < m->n && same_bytes(held, m, i, &t))
                        continue;
                answer->mismatch = true;
                snprintf(answer->text, sizeof(answer->text), "%.100s, while it loads: its bytes differ", t.name);
                break;
        }
        model_free(m);
        return r == STREAMER_EEND ? 0 : r;
}

/* A detach does not wait for the daemon. The reply to a later request on the connection shows that it was processed. */
static void detach(streamer_client *c, struct slot_lease *held)
{
        streamer_detach(held->lease);
        held->lease = NULL;
        streamer_call(c, "ping", NULL, NULL);
}

static void attach(streamer_client *c, struct slot_lease *held, const struct request *request,
                   struct client_answer *answer)
{
        streamer_attach_opts opts = {.struct_size = sizeof(opts),
                                     .flags = request->verb == ATTACH_LOADING ? 0 : STREAMER_ATTACH_READY,
                                     .device = request->device[0] != '\0' ? request->device : NULL,
                                     .digest = request->digest[0] != '\0' ? request->digest : NULL,
                                     .generation = request->generation,
                                     .timeout_ms = PATIENCE_MS};
        answer->result = streamer_attach(c, request->model, &opts, &held->lease);
        if (answer->result != 0) {
                snprintf(answer->text, sizeof(answer->text), "%s", streamer_last_error(c));
                return;
        }
        const char *seed = streamer_metadata(held->lease, "seed");
        held->seed = seed != NULL ? strtoull(seed, NULL, 10) : 0;
        answer->seed = held->seed;
        answer->generation = streamer_generation(held->lease);
        if (request->verb == ATTACH_LOADING)
                answer->result = check_arriving(held, answer);
        if (answer->result == 0)
                check_contents(held, answer);
        else
                detach(c, held);
}

static void recheck(const struct slot_lease *held, unsigned slot, struct client_answer *answer)
{
        if (held->lease == NULL || answer->mismatch)
                return;
        check_contents(held, answer);
        int r = streamer_lease_check(held->lease);
        if (r == STREAMER_EREVOKED)
                answer->revoked |= 1u << slot;
        else if (r != 0 && !answer->mismatch) {
                answer->mismatch = true;
                snprintf(answer->text, sizeof(answer->text), "its lease: %s", streamer_strerror(r));
        }
}

static void run_request(streamer_client *c, struct slot_lease *held, const struct request *request,
                        struct client_answer *answer)
{
        switch (request->verb) {
        case ATTACH:
        case ATTACH_LOADING:
                return attach(c, &held[request->slot], request, answer);
        case DETACH:
                check_contents(&held[request->slot], answer);
                return detach(c, &held[request->slot]);
        case RECHECK:
                for (unsigned i = 0; i < CLIENT_SLOTS; i++)
                        recheck(&held[i], i, answer);
                break;
        case BREAK:
        case BREAK_UNNOTICED:
                must(shutdown(client_socket(c), request->verb == BREAK ? SHUT_RDWR : SHUT_RD));
                break;
        }
}

static _Noreturn void run_process(const char *socket, int fd)
{
        streamer_connect_opts opts = {.struct_size = sizeof(opts), .socket = socket, .timeout_ms = PATIENCE_MS};
        struct slot_lease held[CLIENT_SLOTS] = {{0}};
        streamer_client *c = NULL;
        struct request request;
        int r = streamer_connect(&opts, &c);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        while (recv(fd, &request, sizeof(request), 0) == sizeof(request)) {
                struct client_answer answer = {.result = r};
                if (r == 0)
                        run_request(c, held, &request, &answer);
                if (send(fd, &answer, sizeof(answer), MSG_NOSIGNAL) != sizeof(answer))
                        break;
        }
        _exit(0);
}

/* ---- the test ---- */

void client_process_start(struct client_process *process, const char *socket)
{
        int fds[2];
        must(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds));
        process->pid = must(fork());
        if (process->pid == 0) {
                close(fds[0]);
                run_process(socket, fds[1]);
        }
        close(fds[1]);
        process->fd = fds[0];
}

void client_process_kill(struct client_process *process)
{
        if (process->pid == 0)
                return;
        must(kill(process->pid, SIGKILL));
        must(waitpid(process->pid, NULL, 0));
        close(process->fd);
        *process = (struct client_process){.fd = -1};
}

static void send_request(struct client_process *process, const struct request *request, struct client_answer *answer)
{
        if (must(send(process->fd, request, sizeof(*request), MSG_NOSIGNAL)) != sizeof(*request) ||
            must(recv(process->fd, answer, sizeof(*answer), 0)) != sizeof(*answer))
                die("a client process exited");
}

void client_process_attach(struct client_process *process, unsigned slot, const struct attach_target *target,
                           struct client_answer *answer)
{
        struct request request = {
                .verb = target->loading ? ATTACH_LOADING : ATTACH, .slot = slot, .generation = target->generation};
        snprintf(request.model, sizeof(request.model), "%s", target->model);
        snprintf(request.device, sizeof(request.device), "%s", target->device != NULL ? target->device : "");
        snprintf(request.digest, sizeof(request.digest), "%s", target->digest != NULL ? target->digest : "");
        send_request(process, &request, answer);
}

void client_process_detach(struct client_process *process, unsigned slot, struct client_answer *answer)
{
        send_request(process, &(struct request){.verb = DETACH, .slot = slot}, answer);
}

void client_process_break(struct client_process *process, bool unnoticed, struct client_answer *answer)
{
        send_request(process, &(struct request){.verb = unnoticed ? BREAK_UNNOTICED : BREAK}, answer);
}

void client_process_recheck(struct client_process *process, struct client_answer *answer)
{
        send_request(process, &(struct request){.verb = RECHECK}, answer);
}
