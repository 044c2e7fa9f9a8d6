/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of verbs and the frame around them: parse, connect, run, and see that what was printed
 * has really been written.
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

#define AT(field) offsetof(struct ctl, field)

const struct flag global_flags[] = {
        {"--socket", NULL, "PATH", "the daemon's socket ($STREAMERD_SOCKET)", FLAG_STR, AT(socket)},
        {"-o", NULL, "FORMAT", "table, wide or json", FLAG_FORMAT, 0},
        {"--json", NULL, NULL, "the same as -o json", FLAG_JSON, 0},
        {"--timeout", NULL, "SECONDS", "for one reply (10); for 'wait', until the model is ready", FLAG_SECONDS, 0},
        {"--no-progress", NULL, NULL, "no progress on standard error", FLAG_BOOL, AT(no_progress)},
        {"--quiet", "-q", NULL, "nothing on standard error but errors", FLAG_BOOL, AT(quiet)},
        {"--help", "-h", NULL, "this text, or the verb's", FLAG_BOOL, AT(help)},
        {"--version", NULL, NULL, "streamerctl's own version", FLAG_BOOL, AT(version)},
        {0},
};

static const struct flag load_flags[] = {
        {"--name", NULL, "NAME", "the model's name; default: from the source", FLAG_STR, AT(name)},
        {"--device", NULL, "DEVICE", "host, cuda:N or N; may be given again for replicas", FLAG_DEVICE, 0},
        {"--detach", NULL, NULL, "do not wait: print the model's name", FLAG_BOOL, AT(detach)},
        {"--verify", NULL, "HOW", "none, or sha256 against published digests", FLAG_STR, AT(verify)},
        {"--dry-run", NULL, NULL, "tell what would be loaded, and whether it fits", FLAG_BOOL, AT(dry_run)},
        {0},
};
static const struct flag show_flags[] = {
        {"--tensors", NULL, NULL, "every tensor too", FLAG_BOOL, AT(tensors)},
        {0},
};
static const struct flag unload_flags[] = {
        {"--drain", NULL, NULL, "refuse new attaches; free with the last lease", FLAG_BOOL, AT(drain)},
        {0},
};

// clang-format off
const struct verb verbs[] = {
        {"load", "SOURCE", "Load a model and wait until it is ready", load_flags, 1, 1, verb_load, false, false},
        {"cancel", "MODEL", "End a load", NULL, 1, 1, verb_cancel, false, false},
        {"list", "", "List the models", NULL, 0, 0, verb_list, false, false},
        {"show", "MODEL", "Show one model", show_flags, 1, 1, verb_show, false, false},
        {"status", "", "Show the daemon, its devices and loads", NULL, 0, 0, verb_status, false, false},
        {"ps", "", "List the leases: which process uses what", NULL, 0, 0, verb_ps, false, false},
        {"wait", "MODEL", "Wait until a model is ready", NULL, 1, 1, verb_wait, false, false},
        {"verify", "MODEL", "Hash a resident model again and compare", NULL, 1, 1, verb_verify, false, false},
        {"unload", "MODEL", "Drop a model", unload_flags, 1, 1, verb_unload, false, false},
        {"cat", "MODEL TENSOR", "Write a tensor's bytes", NULL, 2, 2, verb_cat, false, true},
        {"events", "", "Follow what happens: one JSON object a line", NULL, 0, 0, verb_events, false, false},
        {"ping", "", "See whether the daemon answers", NULL, 0, 0, verb_ping, false, false},
        {"version", "", "Show the daemon's and streamerctl's version", NULL, 0, 0, verb_version, false, false},
        {"help", "[VERB]", "Show help", NULL, 0, 1, verb_help, true, false},
        {0},
};
// clang-format on

int verb_help(struct ctl *ctl)
{
        const struct verb *v = ctl->n_args > 0 ? verb_by_name(ctl->args[0]) : NULL;
        if (ctl->n_args > 0 && !v)
                return usage_error(ctl, "unknown verb '%.100s'", ctl->args[0]);
        help_print(v);
        return 0;
}

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
