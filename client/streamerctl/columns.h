/* SPDX-License-Identifier: Apache-2.0
 *
 * Tables of JSON rows.
 */
#pragma once

#include "client/streamerctl/ctl.h"
#include "client/streamerctl/output.h"

#define COLUMNS_MAX 16
#define COLUMNS(columns) (columns), sizeof(columns) / sizeof((columns)[0])

/* Rows of their own below a row; NULL: none. */
typedef void below_fn(struct table *table, const json_t *row);

/* `whole`: also where the terminal is narrower. */
void columns_print(const json_t *rows, const struct column *columns, size_t n, bool whole, below_fn *below);

/* ---- cells ---- */

void add_text(struct table *t, const json_t *row, const char *key);
void add_number(struct table *t, const json_t *row, const char *key);
void add_size(struct table *t, const json_t *row, const char *key);
void add_time(struct table *t, const json_t *row, const char *key);
void add_time_or_nothing(struct table *t, const json_t *row, const char *key); /* nothing where it is 0 */
void add_yes_no(struct table *t, const json_t *row, const char *key);
