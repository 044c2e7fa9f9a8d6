/* SPDX-License-Identifier: Apache-2.0
 *
 * The entries of `preload`.
 */
#include "daemon/config/document/document.h"

#include "daemon/base/util.h"
#include "daemon/load/load.h"
#include "daemon/model/ranks.h"
#include "daemon/source/source.h"
#include "proto/hub.h"

#include <string.h>

/* ---- fields ---- */

static int set_source(void *member, const char *value, char why[SETTING_WHY])
{
        cleanup_free char *canonical = NULL;
        struct error error = {0};
        if (strlen(value) > PROTO_TEXT_MAX)
                return setting_wrong(why, "longer than %d bytes", PROTO_TEXT_MAX);
        if (!hub_is_id(value) && source_canonical(value, &canonical, &error) < 0)
                return setting_wrong(why, "%.150s", error.text);
        return setting_copy(member, value, why);
}

static int set_name(void *member, const char *value, char why[SETTING_WHY])
{
        if (value[0] == '\0' || strlen(value) > PROTO_NAME_MAX)
                return setting_wrong(why, "a name has 1 to %d bytes", PROTO_NAME_MAX);
        return setting_copy(member, value, why);
}

/* The member is the entry. */
static int set_devices(void *member, const char *value, char why[SETTING_WHY])
{
        struct preload_entry *e = member;
        if (value == NULL)
                return 0;
        return setting_append(&e->devices, &e->n_devices, LOAD_DEVICES, "devices", value, why);
}

/* *is_second: which of two words the value is. */
static int parse_either(bool *is_second, const char *first, const char *second, const char *value,
                        char why[SETTING_WHY])
{
        *is_second = strcmp(value, second) == 0;
        return *is_second || strcmp(value, first) == 0
                       ? 0
                       : setting_wrong(why, "'%.40s' is neither %s nor %s", value, first, second);
}

static int set_layout(void *member, const char *value, char why[SETTING_WHY])
{
        return parse_either(member, "replica", "rank", value, why);
}

static int set_pattern(void *member, const char *value, char why[SETTING_WHY])
{
        struct ranks_error error;
        if (ranks_check_pattern(value, &error) < 0)
                return setting_wrong(why, "%.150s", error.text);
        return setting_copy(member, value, why);
}

static int set_verify(void *member, const char *value, char why[SETTING_WHY])
{
        return parse_either(member, "none", "sha256", value, why);
}

static int set_priority(void *member, const char *value, char why[SETTING_WHY])
{
        uint64_t n;
        if (config_parse_size(value, &n) < 0 || n < 1 || n > PROTO_PRIORITY_MAX)
                return setting_wrong(why, "'%.40s' is not within 1 to %d", value, PROTO_PRIORITY_MAX);
        *(unsigned *)member = (unsigned)n;
        return 0;
}

static int set_keep_alive(void *member, const char *value, char why[SETTING_WHY])
{
        uint64_t *keep_alive_ns = member;
        if (config_parse_duration(value, keep_alive_ns) < 0)
                return setting_wrong(why, "'%.40s' is not a duration (with ms, s, m or h)", value);
        if (*keep_alive_ns > PROTO_DURATION_MAX * 1000000)
                return setting_wrong(why, "%.40s is not within 0 to 8784h", value);
        return 0;
}

#define FIELD(name) offsetof(struct preload_entry, name)
static const struct doc_field fields[] = {
        {"source", set_source, FIELD(source), false},
        {"name", set_name, FIELD(name), false},
        {"devices", set_devices, 0, true},
        {"layout", set_layout, FIELD(rank), false},
        {"pattern", set_pattern, FIELD(pattern), false},
        {"verify", set_verify, FIELD(sha256), false},
        {"pin", setting_parse_bool, FIELD(pin), false},
        {"priority", set_priority, FIELD(priority), false},
        {"keep_alive", set_keep_alive, FIELD(keep_alive_ns), false},
};

/* ---- the list ---- */

static int check_entry(struct doc *doc, void *entry)
{
        const struct preload_list *list = &doc->config->preload;
        const struct preload_entry *last = entry;
        if (last->source == NULL)
                return doc_fail(doc, "has no 'source'");
        if (last->pattern != NULL && !last->rank)
                return doc_fail(doc, "only the layout 'rank' has a pattern");
        for (size_t i = 0; i + 1 < list->n; i++)
                if (preload_entry_equal(&list->v[i], last))
                        return doc_fail(doc, "listed twice");
        return 0;
}

const struct doc_list preload_entries = {.key = "preload",
                                         .fields = fields,
                                         .n_fields = ARRAY_SIZE(fields),
                                         .entry_size = sizeof(struct preload_entry),
                                         .max = PRELOAD_MAX,
                                         .too_many = "too many models",
                                         .entries = offsetof(struct config, preload.v),
                                         .n = offsetof(struct config, preload.n),
                                         .check = check_entry};
