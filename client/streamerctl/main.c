/* SPDX-License-Identifier: Apache-2.0
 *
 * Parses the command line, connects, runs the verb, and checks that its output was written.
 */
#include "client/streamerctl/ctl.h"
#include "client/streamerctl/output.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define CONNECT_MIN_MS 1000

void print_ping(const struct ctl *ctl, const json_t *reply)
{
        puts("ok");
}

static void print_own_version(void)
{
        printf("streamerctl %s (commit %s)\n", STREAMERD_VERSION, build_commit);
}

/* Of both programs, or of this one and then the error. */
int verb_version(struct ctl *ctl)
{
        json_auto_t *reply = NULL;
        int rc = ctl_connect(ctl, 0, ctl->timeout_ms > 0 ? ctl->timeout_ms : 0)
                         ?: ask(ctl->client, "version", json_object(), &reply);
        if (!reply)
                reply = json_object();
        json_object_set_new(reply, "streamerctl", json_string(STREAMERD_VERSION));
        json_object_set_new(reply, "streamerctl_commit", json_string(build_commit));
        if (ctl->format == FORMAT_JSON)
                ctl_print_json(reply);
        else if (rc != 0)
                print_own_version();
        else
                printf("streamerd %s (commit %s, protocol %llu), streamerctl %s (commit %s)\n",
                       json_str(reply, "version"), json_str(reply, "commit"),
                       (unsigned long long)json_u64(reply, "protocol"), STREAMERD_VERSION, build_commit);
        if (rc != 0)
                rc = ctl_fail(ctl, rc, NULL);
        streamer_close(ctl->client);
        return rc;
}

/* The next open() would take the number of a standard descriptor that is closed: output would go to the socket.
 * Opened read-only, so that writing still fails. */
static void reserve_standard_descriptors(void)
{
        int fd;
        do {
                fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
        } while (fd >= 0 && fd <= STDERR_FILENO);
        if (fd >= 0)
                close(fd);
}

/* The wait for a model may be shorter than a daemon that is busy needs to accept a connection. */
static int connect_ms(const struct ctl *ctl)
{
        return ctl->timeout_ms > CONNECT_MIN_MS ? ctl->timeout_ms : CONNECT_MIN_MS;
}

static int run_verb(struct ctl *ctl)
{
        const struct verb *v = ctl->verb;
        json_auto_t *reply = NULL;
        if (v->run)
                return v->run(ctl);
        if (v->each)
                return ctl_each(ctl, v->each);
        int rc = ctl_query(ctl, v->name, json_object(), NULL, &reply);
        if (reply)
                v->print(ctl, reply);
        return rc;
}

static int run_connected(struct ctl *ctl)
{
        bool waits = ctl->verb->waits && !ctl->detach && !ctl->dry_run;
        if (ctl->timeout_ms == 0 && !waits)
                return usage_error(ctl, "--timeout must be more than 0");
        if (ctl->timeout_ms >= 0 && waits)
                ctl->deadline_ns = clock_now_ns() + (uint64_t)ctl->timeout_ms * UINT64_C(1000000);
        int rc = waits ? ctl_connect(ctl, ctl->timeout_ms < 0 ? 0 : connect_ms(ctl), 0)
                       : ctl_connect(ctl, 0, ctl->timeout_ms > 0 ? ctl->timeout_ms : 0);
        if (rc != 0)
                return ctl_fail(ctl, rc, NULL);
        rc = run_verb(ctl);
        streamer_close(ctl->client);
        return rc;
}

static int run(struct ctl *ctl)
{
        if (ctl->version)
                print_own_version();
        else if (ctl->help)
                help_print(stdout, ctl->verb && ctl->verb->run != verb_help ? ctl->verb : NULL);
        else
                return ctl->verb->offline ? ctl->verb->run(ctl) : run_connected(ctl);
        return 0;
}

static int check_output(const struct ctl *ctl, int rc)
{
        if (fflush(stdout) == 0 && !ferror(stdout))
                return rc;
        int failed = rc == EXIT_SIGPIPE ? rc : output_error(ctl);
        return rc != 0 ? rc : failed;
}

int main(int argc, char **argv)
{
        struct ctl ctl = {.timeout_ms = -1};
        reserve_standard_descriptors();
        signal(SIGPIPE, SIG_IGN); /* a closed pipe is an error of write() */
        ctl.args = calloc((size_t)argc + 1, sizeof(*ctl.args));
        if (!ctl.args)
                out_of_memory();
        int rc = EXIT_USAGE;
        if (argc > 1)
                rc = flags_parse(&ctl, argc, argv) ?: check_output(&ctl, run(&ctl));
        else
                help_print(stderr, NULL);
        for (size_t i = 0; i < ctl.n_devices; i++)
                free(ctl.devices[i]);
        free(ctl.args);
        return rc;
}
