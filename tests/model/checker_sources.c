/* SPDX-License-Identifier: Apache-2.0
 *
 * The checker's sources: files, and directories with one file per rank. Each file has its own seed.
 */
#include "tests/model/checker_model.h"

unsigned source_ranks(unsigned source)
{
        static const unsigned ranks[SOURCES - PLAIN_SOURCES] = {1, 2, 2, 3};
        return source < PLAIN_SOURCES ? 0 : ranks[source - PLAIN_SOURCES];
}

char *source_path(const struct checker *c, unsigned source)
{
        return format_text(source < PLAIN_SOURCES ? "%s/source-%u.safetensors" : "%s/source-%u", c->root, source);
}

char *link_path(const struct checker *c, unsigned source)
{
        return format_text("%s/link-%u.safetensors", c->root, source);
}

char *rank_path(const struct checker *c, unsigned source, unsigned rank)
{
        return source < PLAIN_SOURCES
                       ? source_path(c, source)
                       : format_text("%s/source-%u/model-rank-%u-part-0.safetensors", c->root, source, rank);
}

static void write_rank(struct checker *c, unsigned source, unsigned rank)
{
        char *path = rank_path(c, source, rank), *aside = format_text("%s/aside", c->root);
        struct model *m = seeded_model(++c->last_seed);
        model_write(m, aside);
        must(rename(aside, path));
        model_free(m);
        free(aside);
        free(path);
        c->seeds[source][rank] = c->last_seed;
}

void write_source(struct checker *c, unsigned source)
{
        unsigned ranks = source_ranks(source);
        char *path = source_path(c, source);
        if (ranks > 0) {
                must(mkdir(path, 0755)); /* other users read it */
        } else {
                char *link = link_path(c, source);
                must(symlink(strrchr(path, '/') + 1, link));
                free(link);
        }
        free(path);
        for (unsigned i = 0; i < ranks || i == 0; i++)
                write_rank(c, source, i);
        c->versions[source]++;
}

/* Rewrites one file; a changed rank makes the whole source another version. */
void step_rewrite(struct checker *c)
{
        replace_source(c, (unsigned)random_below(c, SOURCES));
}

void replace_source(struct checker *c, unsigned source)
{
        unsigned ranks = source_ranks(source);
        trail_add(c, "rewrite source %u", source);
        write_rank(c, source, ranks > 0 ? (unsigned)random_below(c, ranks) : 0);
        c->versions[source]++;
        c->counts->rewrites++;
}
