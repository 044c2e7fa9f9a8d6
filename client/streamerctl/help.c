/* SPDX-License-Identifier: Apache-2.0
 *
 * Help, as the table of verbs and flags has it: an overview, and one page for each verb.
 */
#include "client/streamerctl/ctl.h"

#include <stdio.h>
#include <string.h>

#define LEFT 24

static void print_row(FILE *to, const char *left, const char *right)
{
        /* A long left side has the line to itself. */
        if (strlen(left) > LEFT)
                fprintf(to, "  %s\n  %-*s %s\n", left, LEFT, "", right);
        else
                fprintf(to, "  %-*s %s\n", LEFT, left, right);
}

static void print_flags(FILE *to, const struct flag *flags)
{
        for (const struct flag *f = flags; f && f->name; f++) {
                char left[64];
                if (f->hidden)
                        continue;
                snprintf(left, sizeof(left), "%s%s%s%s%s", f->alias ? f->alias : "", f->alias ? ", " : "", f->name,
                         f->value ? " " : "", f->value ? f->value : "");
                print_row(to, left, f->help);
        }
}

static void print_lines(FILE *to, const char *lines)
{
        while (*lines) {
                size_t len = strcspn(lines, "\n");
                fprintf(to, "  %.*s\n", (int)len, lines);
                lines += len + (lines[len] == '\n');
        }
}

static void print_verb(FILE *to, const struct verb *verb)
{
        fprintf(to, "Usage: streamerctl %s%s%s%s\n\n%s\n", verb->name, verb->args[0] ? " " : "", verb->args,
                verb->flags ? " [FLAGS]" : "", verb->summary);
        if (verb->about)
                fprintf(to, "\n%s\n", verb->about);
        if (verb->alias)
                fprintf(to, "\n'%s' is an alias.\n", verb->alias);
        if (verb->flags)
                fprintf(to, "\nFlags:\n");
        print_flags(to, verb->flags);
        if (verb->examples)
                fprintf(to, "\nExamples:\n");
        print_lines(to, verb->examples ? verb->examples : "");
}

static void print_overview(FILE *to)
{
        fprintf(to, "Usage: streamerctl [FLAGS] VERB [ARGUMENTS]\n\nVerbs:\n");
        for (const struct verb *v = verbs; v->name; v++) {
                if (v->hidden)
                        continue;
                char left[64];
                snprintf(left, sizeof(left), "%s %s", v->name, v->args);
                print_row(to, left, v->summary);
        }
}

void help_print(FILE *to, const struct verb *verb)
{
        if (verb)
                print_verb(to, verb);
        else
                print_overview(to);
        fprintf(to, "\nFlags of every verb:\n");
        print_flags(to, global_flags);
        fprintf(to,
                "\nExit codes: 0 ok, 1 failed, 2 wrong usage, 3 not found, 4 daemon unreachable, 5 timeout, 6 in use,\n"
                "7 insufficient memory, 8 permission denied.\n");
}

int verb_help(struct ctl *ctl)
{
        const struct verb *v = ctl->n_args > 0 ? verb_by_name(ctl->args[0]) : NULL;
        if (ctl->n_args > 0 && !v)
                return usage_error(ctl, "unknown verb '%.100s'", ctl->args[0]);
        help_print(stdout, v);
        return 0;
}
