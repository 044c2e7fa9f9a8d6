/* SPDX-License-Identifier: Apache-2.0
 *
 * The frame around a verb: parse, connect, run, and see that what was printed has really been
 * written.
 */
#include "client/streamerctl/ctl.h"
#include "client/streamerctl/output.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int verb_ping(struct ctl *ctl)
{
        cleanup_json json_t *reply = NULL;
        int rc = ctl_call(ctl, "ping", NULL, NULL, &reply);
        if (rc != 0)
                return rc;
        if (ctl->format == FORMAT_JSON)
                ctl_print_json(reply);
        else
                puts("ok");
        return 0;
}

int verb_version(struct ctl *ctl)
{
        cleanup_json json_t *reply = NULL;
        int rc = ctl_call(ctl, "version", NULL, NULL, &reply);
        if (rc != 0)
                return rc;
        json_object_set_new(reply, "streamerctl", json_string(STREAMERD_VERSION));
        if (ctl->format == FORMAT_JSON)
                ctl_print_json(reply);
        else
                printf("streamerd %s (protocol %llu), streamerctl %s\n", json_str(reply, "version"),
                       (unsigned long long)json_u64(reply, "protocol"), STREAMERD_VERSION);
        return 0;
}

/* A standard descriptor that is closed would be taken by the next open: by the socket, which would
 * then get what is printed. Read-only, so that writing still fails. */
static void hold_descriptors(void)
{
        int fd;
        do {
                fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
        } while (fd >= 0 && fd <= STDERR_FILENO);
        if (fd >= 0)
                close(fd);
}

static int run_connected(struct ctl *ctl)
{
        bool is_wait = ctl->verb->run == verb_wait;
        streamer_connect_opts opts = {.struct_size = sizeof(opts), .socket = ctl->socket};
        if (ctl->timeout_ms == 0 && !is_wait)
                return usage_error(ctl, "--timeout must be more than 0");
        if (ctl->timeout_ms > 0 && !is_wait)
                opts.timeout_ms = ctl->timeout_ms;
        int rc = streamer_connect(&opts, &ctl->client);
        if (rc != 0)
                return ctl_fail(ctl, rc, NULL);
        rc = ctl->verb->run(ctl);
        streamer_close(ctl->client);
        return rc;
}

static int run(struct ctl *ctl)
{
        if (ctl->version)
                printf("streamerctl %s\n", STREAMERD_VERSION);
        else if (ctl->help)
                help_print(ctl->verb && ctl->verb->run != verb_help ? ctl->verb : NULL);
        else
                return ctl->verb->offline ? ctl->verb->run(ctl) : run_connected(ctl);
        return 0;
}

static int check_output(int rc)
{
        if (fflush(stdout) == 0 && !ferror(stdout))
                return rc;
        fprintf(stderr, "streamerctl: cannot write to standard output: %s\n", strerror(errno));
        return rc != 0 ? rc : 1;
}

int main(int argc, char **argv)
{
        struct ctl ctl = {.timeout_ms = -1};
        hold_descriptors();
        signal(SIGPIPE, SIG_IGN); /* a reader that went away is an error like another */
        ctl.args = calloc((size_t)argc + 1, sizeof(*ctl.args));
        if (!ctl.args)
                return 1;
        int rc = flags_parse(&ctl, argc, argv);
        if (rc == 0)
                rc = check_output(run(&ctl));
        free(ctl.args);
        return rc;
}
