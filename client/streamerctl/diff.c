/* SPDX-License-Identifier: Apache-2.0
 *
 * diff: the files and tensors of a resident model that a load of a source would change. The JSON is the daemon's reply.
 */
#include "client/streamerctl/columns.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static char mark_of(const json_t *row)
{
        const char *change = json_str(row, "change");
        return strcmp(change, "added") == 0 ? '+' : strcmp(change, "removed") == 0 ? '-' : '~';
}

static void print_file(const json_t *row)
{
        char before[HUMAN_MAX], after[HUMAN_MAX];
        human_size(before, json_u64(row, "old_bytes"));
        human_size(after, json_u64(row, "bytes"));
        printf("  %c ", mark_of(row));
        put_escaped(stdout, json_str(row, "file"));
        if (mark_of(row) != '~')
                printf("  %s\n", mark_of(row) == '+' ? after : before);
        else if (json_u64(row, "old_bytes") != json_u64(row, "bytes"))
                printf("  %s > %s\n", before, after);
        else
                printf("  %s, %s\n", after,
                       json_u64(row, "old_mtime_ns") != json_u64(row, "mtime_ns") ? "modified" : "another file");
}

static void print_tensor(const json_t *row)
{
        printf("  %c ", mark_of(row));
        put_escaped(stdout, json_str(row, "tensor"));
        printf("  %s%s%s\n", json_str(row, "before"), mark_of(row) == '~' ? " > " : "", json_str(row, "after"));
}

static void print_diff(const json_t *reply)
{
        const json_t *row, *counts = json_object_get(reply, "tensors"), *same = json_object_get(reply, "files_same");
        put_escaped(stdout, json_str(reply, "name"));
        printf("  generation %" PRIu64 "\n", json_u64(reply, "generation"));
        if (same)
                printf("files    %zu differ, %" PRIu64 " the same\n", json_array_size(json_object_get(reply, "files")),
                       json_u64(reply, "files_same"));
        else
                puts("files    not known: the model was not read by this run of the daemon");
        for (size_t i = 0; (row = json_array_get(json_object_get(reply, "files"), i)); i++)
                print_file(row);
        printf("tensors  %" PRIu64 " added, %" PRIu64 " removed, %" PRIu64 " changed, %" PRIu64 " may differ, %" PRIu64
               " the same\n",
               json_u64(counts, "added"), json_u64(counts, "removed"), json_u64(counts, "changed"),
               json_u64(reply, "may_differ"), json_u64(reply, "same"));
        for (size_t i = 0; (row = json_array_get(json_object_get(reply, "changes"), i)); i++)
                print_tensor(row);
        if (json_bool(reply, "truncated"))
                puts("  ...");
}

int verb_diff(struct ctl *ctl)
{
        json_auto_t *reply = NULL;
        json_t *args = json_pack("{s:s, s:s}", "model", ctl->args[0], "source", ctl->args[1]);
        int rc = ctl_query(ctl, "diff", args, ctl->args[0], &reply);
        if (reply)
                print_diff(reply);
        return rc;
}
