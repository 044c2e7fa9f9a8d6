/* SPDX-License-Identifier: Apache-2.0
 *
 * Help, as the table of verbs and flags has it: an overview, and one page for each verb.
 */
#include "client/streamerctl/ctl.h"

#include <stdio.h>
#include <string.h>

#define LEFT 24

static void print_row(const char *left, const char *right)
{
        /* A long left side has the line to itself. */
        if (strlen(left) > LEFT)
                printf("  %s\n  %-*s %s\n", left, LEFT, "", right);
        else
                printf("  %-*s %s\n", LEFT, left, right);
}

static void print_flags(const struct flag *flags)
{
        for (const struct flag *f = flags; f && f->name; f++) {
                char left[64];
                if (f->hidden)
                        continue;
                snprintf(left, sizeof(left), "%s%s%s%s%s", f->alias ? f->alias : "", f->alias ? ", " : "", f->name,
                         f->value ? " " : "", f->value ? f->value : "");
                print_row(left, f->help);
        }
}

static void print_lines(const char *lines)
{
        while (*lines) {
                size_t len = strcspn(lines, "\n");
                printf("  %.*s\n", (int)len, lines);
                lines += len + (lines[len] == '\n');
        }
}

static void print_verb(const struct verb *verb)
{
        printf("Usage: streamerctl %s%s%s%s\n\n%s\n", verb->name, verb->args[0] ? " " : "", verb->args,
               verb->flags ? " [FLAGS]" : "", verb->summary);
        if (verb->about)
                printf("\n%s\n", verb->about);
        if (verb->alias)
                printf("\n'%s' is an alias.\n", verb->alias);
        if (verb->flags)
                printf("\nFlags:\n");
        print_flags(verb->flags);
        if (verb->examples)
                printf("\nExamples:\n");
        print_lines(verb->examples ? verb->examples : "");
}

static void print_overview(void)
{
        printf("Usage: streamerctl [FLAGS] VERB [ARGUMENTS]\n\nVerbs:\n");
        for (const struct verb *v = verbs; v->name; v++) {
                if (v->hidden)
                        continue;
                char left[64];
                snprintf(left, sizeof(left), "%s %s", v->name, v->args);
                print_row(left, v->summary);
        }
}

void help_print(const struct verb *verb)
{
        if (verb)
                print_verb(verb);
        else
                print_overview();
        printf("\nFlags of every verb:\n");
        print_flags(global_flags);
        printf("\nExit codes: 0 ok, 1 failed, 2 wrong usage, 3 not found, 4 daemon unreachable, 5 timeout, 6 in use,\n"
               "7 insufficient memory, 8 permission denied.\n");
}

int verb_help(struct ctl *ctl)
{
        const struct verb *v = ctl->n_args > 0 ? verb_by_name(ctl->args[0]) : NULL;
        if (ctl->n_args > 0 && !v)
                return usage_error(ctl, "unknown verb '%.100s'", ctl->args[0]);
        help_print(v);
        return 0;
}
