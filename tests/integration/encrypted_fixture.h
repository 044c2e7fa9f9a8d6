/* SPDX-License-Identifier: Apache-2.0
 *
 * A daemon with a file of keys, and a model as encrypted files.
 */
#pragma once

#include "tests/lib/encrypted_model.h"
#include "tests/lib/fixture.h"
#include "tests/lib/suite.h"

static struct model *model;

/* "big" has several blocks of 1 MiB. */
static inline struct model *encrypted_model(uint64_t seed)
{
        struct model *m = model_new(seed);
        model_set_metadata(m, "{\"format\":\"pt\"}");
        model_add(m, "first", "U8", (uint64_t[]){3}, 1);
        model_add(m, "big", "BF16", (uint64_t[]){1, 2500000}, 2);
        model_add(m, "empty", "U8", (uint64_t[]){0}, 1);
        model_add_many(m, "z", 20, 77777);
        return m;
}

/* A file below the root; never freed. */
static inline char *encrypted_file(const char *name, const struct encrypted_form *form)
{
        char *path = suite_path("root/%s", name);
        encrypted_write(form, model, path);
        must(chmod(path, 0644));
        return path;
}

static inline char *keys_path(void)
{
        return suite_path("keys.json");
}

/* Further lines of the section `encryption`, indented by two spaces, and of the configuration. */
static inline void encrypted_begin_with(const char *encryption, const char *settings)
{
        mkdir(suite_path("root"), 0755);
        must(chmod(suite_folder(), 0755));
        encrypted_keys_write(keys_path(), encrypted_keys(NULL));
        model = encrypted_model(41);
        DAEMON_START(&test_daemon, suite_path("d"), "--config",
                     suite_file("encrypted.yaml",
                                format_text("devices:\n  - {device: %s, budget: 128MiB}\nroots: [%s]\nio: {block_size: "
                                            "1MiB}\nencryption:\n  keys: [\"file:%s\"]\n%s%s",
                                            daemon_on_gpu() ? "\"cuda:0\"" : "host", suite_path("root"), keys_path(),
                                            encryption, settings)));
        client = client_open(&test_daemon);
}

static inline void encrypted_begin(void)
{
        encrypted_begin_with("", "");
}

/* The log has no key. */
static inline void encrypted_end(void)
{
        fixture_stop();
        char *log = file_read(test_daemon.log, NULL), *keys = encrypted_keys(NULL), *at = keys;
        while ((at = strstr(at, "\"k\":\"")) != NULL) {
                at += strlen("\"k\":\"");
                char *key = strndup(at, 20);
                ck_assert_ptr_null(strstr(log, key));
        }
}
