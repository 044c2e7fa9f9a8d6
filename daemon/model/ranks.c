/* SPDX-License-Identifier: Apache-2.0
 *
 * Matches every name, sorts the matches by rank and part, and compares neighbours: an equal number is a duplicate, a
 * step of more than one is a gap.
 */
#include "daemon/model/ranks.h"

#include "daemon/base/util.h"

#define RANK "{rank}"
#define PART "{part}"
#define DIGITS_MAX 9

/* ---- the pattern ---- */

int ranks_check_pattern(const char *pattern, struct error *error)
{
        const char *rank = strstr(pattern, RANK), *part = strstr(pattern, PART);
        if (rank == NULL || strstr(rank + 1, RANK) != NULL || (part != NULL && strstr(part + 1, PART) != NULL))
                return error_set(error, STREAMER_EINVAL,
                                 "pattern '%.140s': " RANK " must stand in it once, " PART " once at most", pattern);
        if (strstr(pattern, "}{") != NULL)
                return error_set(error, STREAMER_EINVAL,
                                 "pattern '%.140s': there must be text between " RANK " and " PART, pattern);
        if (strchr(pattern, '/') != NULL)
                return error_set(error, STREAMER_EINVAL,
                                 "pattern '%.140s': it is matched with names of files, which have no '/'", pattern);
        return 0;
}

/* ---- names ---- */

static bool take_number(const char **name, uint32_t *number)
{
        size_t digits = strspn(*name, "0123456789");
        if (digits == 0 || digits > DIGITS_MAX)
                return false;
        *number = (uint32_t)strtoul(*name, NULL, 10);
        *name += digits;
        return true;
}

static bool matches(const char *pattern, const char *name, struct rank_file *match)
{
        match->part = 0;
        while (*pattern != '\0') {
                bool rank = strncmp(pattern, RANK, strlen(RANK)) == 0, part = strncmp(pattern, PART, strlen(PART)) == 0;
                if (!rank && !part && *pattern++ != *name++)
                        return false;
                if ((rank || part) && !take_number(&name, rank ? &match->rank : &match->part))
                        return false;
                pattern += rank ? strlen(RANK) : part ? strlen(PART) : 0;
        }
        return *name == '\0';
}

static int by_rank_and_part(const void *a, const void *b)
{
        const struct rank_file *x = a, *y = b;
        return x->rank != y->rank ? ORDER(x->rank, y->rank) : ORDER(x->part, y->part);
}

/* The first match, and each after the one before it. */
static int check_step(const struct rank_file *before, const struct rank_file *m, const char *const *names,
                      struct error *error)
{
        bool same = before != NULL && before->rank == m->rank;
        if (same && before->part == m->part)
                return error_set(error, STREAMER_EFAILED, "rank %u, part %u is there twice: '%.140s' and '%.140s'",
                                 m->rank, m->part, names[before->file], names[m->file]);
        uint32_t rank = before == NULL ? 0 : before->rank + !same, part = same ? before->part + 1 : 0;
        if (m->rank != rank)
                return error_set(error, STREAMER_EFAILED, "rank %u is missing, and '%.140s' is there", rank,
                                 names[m->file]);
        if (m->part != part)
                return error_set(error, STREAMER_EFAILED, "rank %u: part %u is missing, and '%.140s' is there", rank,
                                 part, names[m->file]);
        return 0;
}

/* ---- all files ---- */

int ranks_list(struct rank_file *files, size_t *n, const char *const *names, size_t n_names, const char *pattern,
               size_t n_devices, struct error *error)
{
        *n = 0;
        for (size_t i = 0; i < n_names; i++) {
                files[*n].file = (uint32_t)i;
                *n += matches(pattern, names[i], &files[*n]);
        }
        if (*n == 0)
                return error_set(error, STREAMER_EFAILED, "no file's name is like '%.140s'", pattern);
        qsort(files, *n, sizeof(*files), by_rank_and_part);
        for (size_t i = 0; i < *n; i++)
                if (check_step(i > 0 ? &files[i - 1] : NULL, &files[i], names, error) < 0)
                        return error->code;
        size_t n_ranks = (size_t)files[*n - 1].rank + 1;
        if (n_ranks == n_devices)
                return 0;
        return error_set(error, STREAMER_EFAILED, "%zu rank%s for %zu device%s: each rank goes to a device of its own",
                         n_ranks, n_ranks == 1 ? "" : "s", n_devices, n_devices == 1 ? "" : "s");
}
