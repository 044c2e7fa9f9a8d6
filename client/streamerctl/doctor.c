/* SPDX-License-Identifier: Apache-2.0
 *
 * doctor: asks the daemon for its facts, compares, tries each device. Without a daemon this side alone
 * is looked at. Exit code 0 also with warnings, 1 where a check failed, 4 (or 8) where the daemon
 * cannot be reached.
 */
#include "client/streamerctl/doctor.h"
#include "client/streamerctl/output.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define REPLY_MS 30000 /* a driver that is not loaded yet takes seconds to start */
#define ROOT_MS 5000
#define CONNECT_MS 5000

static const char *const results[] = {"ok", "warn", "fail"};

void doctor_add(struct doctor *d, enum finding finding, const char *check, const char *advice, const char *format, ...)
{
        char text[1400];
        va_list ap;
        va_start(ap, format);
        vsnprintf(text, sizeof(text), format, ap);
        va_end(ap);
        char *safe = escape(text); /* may have been cut inside a character */
        json_t *row = json_pack("{s:s, s:s, s:s}", "check", check, "result", results[finding], "text", safe);
        if (advice && row)
                json_object_set_new(row, "advice", json_string(advice));
        json_array_append_new(d->checks, row);
        d->count[finding]++;
        free(safe);
}

/* ---- asking ---- */

/* A failure of one question does not end the others. */
static void check_root(struct doctor *d, const char *root)
{
        json_auto_t *reply = NULL;
        int rc = ask(d->ctl->client, "doctor", json_pack("{s:s}", "root", root), &reply);
        if (reply && json_bool(reply, "changed"))
                doctor_add(d, FINDING_WARN, "root",
                           "order the daemon after its mounts (RequiresMountsFor= in the unit), or restart it",
                           "%s: another file system (%s) is mounted there than when the daemon started; loads read it",
                           root, json_str(reply, "file_system"));
        if (rc == STREAMER_ETIMEOUT)
                doctor_add(d, FINDING_FAIL, "root", "check its file system; other roots are not affected",
                           "%s: no reply within %d s", root, ROOT_MS / 1000);
        else if (rc != 0)
                doctor_add(d, FINDING_FAIL, "root", "grant the daemon's user permission to list and read it", "%s: %s",
                           root, streamer_last_error(d->ctl->client));
        else if (!json_str(reply, "file")[0])
                doctor_add(d, FINDING_WARN, "root", "put models there, or configure another root",
                           "%s: contains no file that the daemon's user may read", root);
        else if (json_u64(reply, "direct_align") == 0)
                doctor_add(d, FINDING_WARN, "root",
                           "use a local file system with O_DIRECT (ext4, xfs), which reads faster",
                           "%s: no O_DIRECT; files are read through the page cache", root);
        else
                doctor_add(d, FINDING_OK, "root", NULL, "%s: O_DIRECT at multiples of %llu bytes%s", root,
                           (unsigned long long)json_u64(reply, "direct_align"),
                           json_bool(reply, "cachestat") ? ", cachestat" : "; no cachestat, the page cache is probed");
}

/* To the same daemon. */
static int connect_again(struct ctl *ctl, const streamer_client *first)
{
        streamer_socket_info socket = STREAMER_SOCKET_INFO_INIT;
        streamer_socket(first, &socket);
        streamer_connect_opts opts = {.struct_size = sizeof(opts), .socket = socket.path, .timeout_ms = ROOT_MS};
        return streamer_connect(&opts, &ctl->client);
}

/* Each by a call that is given up after a while: a file system that hangs must not hold the rest. */
static void check_roots(struct doctor *d)
{
        const json_t *root;
        streamer_client *client = d->ctl->client;
        for (size_t i = 0; (root = json_array_get(json_object_get(d->facts, "roots"), i)); i++) {
                if (connect_again(d->ctl, client) != 0)
                        break;
                check_root(d, json_string_value(root));
                streamer_close(d->ctl->client);
        }
        d->ctl->client = client;
}

/* ---- printing ---- */

static void print_table(const struct doctor *d)
{
        const json_t *row;
        for (size_t i = 0; (row = json_array_get(d->checks, i)); i++) {
                printf("%-5s %-10s ", json_str(row, "result"), json_str(row, "check"));
                put_escaped(stdout, json_str(row, "text"));
                putchar('\n');
                if (json_object_get(row, "advice"))
                        printf("%16s > %s\n", "", json_str(row, "advice"));
        }
        printf("%u ok, %u warning%s, %u failed\n", d->count[FINDING_OK], d->count[FINDING_WARN],
               d->count[FINDING_WARN] == 1 ? "" : "s", d->count[FINDING_FAIL]);
}

static void print(const struct doctor *d)
{
        if (d->ctl->format != FORMAT_JSON) {
                print_table(d);
                return;
        }
        const char *worst = d->count[FINDING_FAIL] ? "fail" : d->count[FINDING_WARN] ? "warn" : "ok";
        json_auto_t *all = json_pack("{s:s, s:O}", "result", worst, "checks", d->checks);
        if (d->facts)
                json_object_set(all, "daemon", d->facts);
        ctl_print_json(all);
}

/* ---- the verb ---- */

static int examine(struct doctor *d)
{
        int given_ms = d->ctl->timeout_ms;
        int rc = ctl_connect(d->ctl, given_ms > 0 && given_ms < CONNECT_MS ? given_ms : CONNECT_MS,
                             given_ms > 0 ? given_ms : REPLY_MS);
        if (rc != 0) {
                self_check_socket(d, streamer_last_error(NULL));
                self_check_cuda(d);
                return streamer_exit_code(rc);
        }
        rc = ask(d->ctl->client, "doctor", json_object(), &d->facts);
        if (rc == 0) {
                daemon_check(d);
                self_check_cuda(d);
                check_roots(d);
                probe_check(d);
        } else {
                doctor_add(d, FINDING_FAIL, "daemon", "update the older one, the daemon or streamerctl", "%s",
                           streamer_last_error(d->ctl->client));
        }
        streamer_close(d->ctl->client);
        return d->count[FINDING_FAIL] ? 1 : 0;
}

int verb_doctor(struct ctl *ctl)
{
        struct doctor d = {.ctl = ctl, .checks = json_array()};
        int rc = examine(&d);
        print(&d);
        json_decref(d.checks);
        json_decref(d.facts);
        return rc;
}
