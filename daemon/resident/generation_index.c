/* SPDX-License-Identifier: Apache-2.0
 *
 * The lists and trees of generations, by which look-ups find them: by state, number, identity, digest, source and name.
 * So a look-up does not depend on what else is resident.
 */
#include "daemon/resident/model.h"

#include <string.h>

bool generation_is_rank_of(const struct generation *g, const struct generation *other)
{
        return g == other || (g->n_ranks > 0 && g->number != 0 && g->number == other->number && other->n_ranks > 0);
}

static struct generation *numbered(const struct tree_node *node)
{
        return container_of(node, struct generation, by_number);
}

static struct generation *identical(const struct tree_node *node)
{
        return container_of(node, struct generation, by_identity);
}

static struct generation *digested(const struct tree_node *node)
{
        return container_of(node, struct generation, by_digest);
}

static struct generation *sourced(const struct tree_node *node)
{
        return container_of(node, struct generation, by_source);
}

static struct model_name *named(const struct tree_node *node)
{
        return container_of(node, struct model_name, in_order);
}

static int compare_numbers(const struct tree_node *a, const struct tree_node *b)
{
        int r = ORDER(numbered(a)->number, numbered(b)->number);
        return r != 0 ? r : ORDER(numbered(a)->sequence, numbered(b)->sequence);
}

static int compare_number(const void *number, const struct tree_node *node)
{
        return ORDER(*(const uint64_t *)number, numbered(node)->number);
}

static int compare_identity(const void *identity, const struct tree_node *node)
{
        return memcmp(((const struct source_identity *)identity)->digest, identical(node)->identity.digest,
                      DIGEST_SIZE);
}

static int compare_identities(const struct tree_node *a, const struct tree_node *b)
{
        int r = compare_identity(&identical(a)->identity, b);
        return r != 0 ? r : ORDER(identical(a)->sequence, identical(b)->sequence);
}

static int compare_digest(const void *digest, const struct tree_node *node)
{
        return memcmp(digest, digested(node)->digest, DIGEST_SIZE);
}

static int compare_digests(const struct tree_node *a, const struct tree_node *b)
{
        int r = compare_digest(digested(a)->digest, b);
        return r != 0 ? r : ORDER(digested(a)->sequence, digested(b)->sequence);
}

static int compare_source(const void *source, const struct tree_node *node)
{
        return strcmp(source, sourced(node)->source);
}

static int compare_sources(const struct tree_node *a, const struct tree_node *b)
{
        int r = compare_source(sourced(a)->source, b);
        return r != 0 ? r : ORDER(sourced(a)->sequence, sourced(b)->sequence);
}

static int compare_text(const void *text, const struct tree_node *node)
{
        return strcmp(text, named(node)->text);
}

static int compare_names(const struct tree_node *a, const struct tree_node *b)
{
        int r = compare_text(named(a)->text, b);
        return r != 0 ? r : ORDER(named(a)->generation->sequence, named(b)->generation->sequence);
}

struct generation *resident_first_numbered(const struct resident *resident, uint64_t number)
{
        struct generation *g =
                tree_item(tree_from(&resident->by_number, &number, compare_number), struct generation, by_number);
        return g != NULL && g->number == number && number != 0 ? g : NULL;
}

struct generation *generation_next_numbered(const struct generation *generation)
{
        struct generation *next = tree_item(tree_next(&generation->by_number), struct generation, by_number);
        return next != NULL && next->number == generation->number ? next : NULL;
}

static struct generation *rank_from(const struct generation *generation, struct generation *rank)
{
        while (rank != NULL && !generation_is_rank_of(generation, rank))
                rank = generation_next_numbered(rank);
        return rank;
}

static bool is_alone(const struct generation *generation)
{
        return generation->n_ranks == 0 || generation->number == 0;
}

struct generation *generation_first_rank(const struct generation *generation)
{
        if (is_alone(generation))
                return (struct generation *)(uintptr_t)generation;
        return rank_from(generation, resident_first_numbered(generation->resident, generation->number));
}

struct generation *generation_next_rank(const struct generation *generation, const struct generation *rank)
{
        return is_alone(generation) ? NULL : rank_from(generation, generation_next_numbered(rank));
}

struct generation *resident_first_identical(const struct resident *resident, const struct source_identity *identity)
{
        return tree_item(tree_find(&resident->by_identity, identity, compare_identity), struct generation, by_identity);
}

struct generation *generation_next_identical(const struct generation *generation)
{
        return tree_item(tree_find_next(&generation->by_identity, &generation->identity, compare_identity),
                         struct generation, by_identity);
}

struct generation *resident_first_ready_digest(const struct resident *resident, const unsigned char digest[DIGEST_SIZE])
{
        return tree_item(tree_find(&resident->by_digest, digest, compare_digest), struct generation, by_digest);
}

struct generation *generation_next_ready_digest(const struct generation *generation)
{
        return tree_item(tree_find_next(&generation->by_digest, generation->digest, compare_digest), struct generation,
                         by_digest);
}

struct generation *resident_first_of_source(const struct resident *resident, const char *source)
{
        return tree_item(tree_find(&resident->by_source, source, compare_source), struct generation, by_source);
}

struct generation *generation_next_of_source(const struct generation *generation)
{
        return tree_item(tree_find_next(&generation->by_source, generation->source, compare_source), struct generation,
                         by_source);
}

struct model_name *resident_name_from(const struct resident *resident, const char *text)
{
        return tree_item(tree_from(&resident->names, text, compare_text), struct model_name, in_order);
}

struct model_name *resident_first_named(const struct resident *resident, const char *text)
{
        return resident_name_from(resident, text);
}

struct model_name *model_name_next(const struct model_name *name)
{
        return tree_item(tree_next(&name->in_order), struct model_name, in_order);
}

/* Others of its number are in the host cache. */
static bool is_cached_elsewhere(const struct generation *generation)
{
        resident_each_numbered(g, generation->resident,
                               generation->number) if (g != generation && g->state == GENERATION_CACHED) return true;
        return false;
}

/* How many models with a generation of its number are partly cached, where so many of its ranks are: 0 or 1. */
static unsigned is_partly_cached(const struct generation *generation, unsigned n_cached)
{
        return n_cached > 0 && n_cached < generation->n_ranks ? 1 : 0;
}

/* Itself among them. */
static unsigned cached_ranks(const struct generation *generation)
{
        unsigned n = 0;
        generation_each_rank(rank, generation) n += rank->state == GENERATION_CACHED ? 1 : 0;
        require(generation->state == GENERATION_CACHED && n > 0);
        return n;
}

void generation_index_leave_state(struct generation *generation)
{
        struct resident *resident = generation->resident;
        require(resident->n_in_state[generation->state] > 0);
        resident->n_in_state[generation->state]--;
        list_remove(&generation->in_state);
        require(tree_is_linked(&generation->by_digest) == (generation->state == GENERATION_READY));
        tree_remove(&resident->by_digest, &generation->by_digest);
        if (generation->state == GENERATION_READY && generation->published != NULL) {
                require(resident->n_published > 0);
                resident->n_published--;
        }
        if (generation->state == GENERATION_CACHED) {
                resident->n_cached -= !is_cached_elsewhere(generation) ? 1 : 0;
                unsigned n = cached_ranks(generation);
                resident->n_partly_cached -= is_partly_cached(generation, n);
                resident->n_partly_cached += is_partly_cached(generation, n - 1);
        }
}

void generation_index_enter_state(struct generation *generation)
{
        struct resident *resident = generation->resident;
        resident->n_in_state[generation->state]++;
        list_append(&resident->in_state[generation->state], &generation->in_state);
        if (generation->state == GENERATION_READY) {
                tree_insert(&resident->by_digest, &generation->by_digest);
                resident->n_readied++;
                resident->n_published += generation->published != NULL ? 1 : 0;
        }
        if (generation->state == GENERATION_CACHED) {
                resident->n_cached += !is_cached_elsewhere(generation) ? 1 : 0;
                unsigned n = cached_ranks(generation);
                resident->n_partly_cached -= is_partly_cached(generation, n - 1);
                resident->n_partly_cached += is_partly_cached(generation, n);
        }
}

/* ---- changes ---- */

void generation_index_init(struct resident *resident)
{
        for (size_t i = 0; i < ARRAY_SIZE(resident->in_state); i++)
                list_init(&resident->in_state[i]);
        tree_init(&resident->by_number, compare_numbers);
        tree_init(&resident->by_identity, compare_identities);
        tree_init(&resident->by_digest, compare_digests);
        tree_init(&resident->by_source, compare_sources);
        tree_init(&resident->names, compare_names);
}

void generation_index_add(struct generation *generation)
{
        tree_node_init(&generation->by_number);
        tree_node_init(&generation->by_identity);
        tree_node_init(&generation->by_digest);
        tree_node_init(&generation->by_source);
        if (generation->source != NULL) /* else there was no memory for it */
                tree_insert(&generation->resident->by_source, &generation->by_source);
        generation_index_enter_state(generation);
}

void generation_index_remove(struct generation *generation)
{
        generation_index_leave_state(generation);
        tree_remove(&generation->resident->by_number, &generation->by_number);
        tree_remove(&generation->resident->by_identity, &generation->by_identity);
        tree_remove(&generation->resident->by_source, &generation->by_source);
}

void generation_index_set_number(struct generation *generation, uint64_t number)
{
        require(number != 0);
        generation_index_leave_state(generation); /* what is counted by number is */
        tree_remove(&generation->resident->by_number, &generation->by_number);
        generation->number = number;
        tree_insert(&generation->resident->by_number, &generation->by_number);
        generation_index_enter_state(generation);
}

void generation_set_identity(struct generation *generation, const struct source_identity *identity)
{
        tree_remove(&generation->resident->by_identity, &generation->by_identity);
        generation->identity = *identity;
        generation->has_identity = true;
        tree_insert(&generation->resident->by_identity, &generation->by_identity);
}
