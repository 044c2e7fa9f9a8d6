/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/resident/persist/snapshot_v1.h"

#include "daemon/base/util.h"

#include <string.h>

#define ITEMS_MAX 1048576u /* more than SNAPSHOT_MAX has room for */

struct v1 {
        struct name_row **rows;
        size_t *n;
};

/* What the devices of one model have in common, and how many there are. */
struct v1_model {
        struct v1 *to;
        struct name_row common;
        size_t n;
};

static char *copy(struct facts *f, const char *text)
{
        char *copied = text != NULL ? strdup(text) : NULL;
        if (text != NULL && copied == NULL)
                f->wrong = facts_no_memory;
        return copied;
}

static struct name_row *append(struct facts *f, struct v1 *to)
{
        struct name_row *row = name_row_append(to->rows, to->n);
        if (row == NULL)
                f->wrong = facts_no_memory;
        return row;
}

static void device_facts(struct facts *f, void *list, size_t i)
{
        struct v1_model *model = list;
        struct name_row *row = append(f, model->to);
        if (row == NULL)
                return;
        *row = model->common;
        row->name = copy(f, model->common.name);
        row->source = copy(f, model->common.source);
        row->pattern = copy(f, model->common.pattern);
        row->loadable = true;
        fact_text(f, "uuid", &row->device, 1, FACT_DEVICE_MAX);
        fact_bool(f, "pinned", &row->settings.pinned);
        model->n++;
}

static void settings_facts(struct facts *f, struct model_settings *settings, uint32_t *owner)
{
        fact_number(f, "keep_alive_ns", &settings->keep_alive_ns, 0);
        fact_number(f, "drain_timeout_ns", &settings->drain_timeout_ns, 0);
        fact_number32(f, "priority", &settings->priority, PROTO_PRIORITY_MAX);
        fact_bool(f, "pinned", &settings->pinned);
        fact_number32(f, "owner", owner, FACT_ID_MAX);
}

static void model_facts(struct facts *f, void *list, size_t i)
{
        struct v1_model model = {.to = list};
        struct name_row *common = &model.common;
        bool ranks = false;
        fact_text(f, "name", &common->name, 1, PROTO_NAME_MAX);
        fact_text(f, "source", &common->source, 1, 0);
        fact_number(f, "generation", &common->number, 0);
        fact_bool(f, "verified", &common->verified);
        fact_caller(f, &common->caller);
        fact_text(f, "pattern", &common->pattern, 0, 0);
        settings_facts(f, &common->settings, &common->owner);
        fact_bool(f, "ranks", &ranks);
        fact_list(f, "devices", 0, 1, NAME_ROW_RANKS, device_facts, &model);
        for (size_t k = 0; ranks && k < model.n; k++) {
                struct name_row *row = &(*model.to->rows)[*model.to->n - model.n + k];
                row->rank = (uint32_t)k;
                row->n_ranks = (uint32_t)model.n;
        }
        name_row_deinit(common);
}

static void name_facts(struct facts *f, void *list, size_t i)
{
        struct name_row *row = append(f, list);
        if (row == NULL)
                return;
        row->n_models = 1;
        fact_number(f, "model", &row->models[0], 0);
        fact_text(f, "name", &row->name, 1, PROTO_NAME_MAX);
        settings_facts(f, &row->settings, &row->owner);
        fact_number(f, "charged", &row->charged, (uint64_t)FACT_ID_MAX + 1);
}

void snapshot_v1_facts(struct facts *f, struct name_row **rows, size_t *n)
{
        struct v1 to = {rows, n};
        fact_list(f, "models", 0, 0, ITEMS_MAX, model_facts, &to);
        fact_list(f, "names", 0, 0, ITEMS_MAX, name_facts, &to);
}
