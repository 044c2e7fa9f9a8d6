/* SPDX-License-Identifier: Apache-2.0
 *
 * Which configuration keys require a restart.
 */
#include "daemon/config/reload.h"

#include "tests/lib/suite.h"

#define HOSTS(rest) "http: {hosts: [{host: a, " rest "}]}"
#define SOURCES(rest) "s3: {sources: [{source: 's3://a'" rest "}]}"

static const struct {
        const char *running, *next, *keys;
} changes[] = {
        {"roots: [/a]", "roots: [/a]", ""},
        {"roots: [/a]", "roots: [/a, /b]", "roots"},
        {"roots: [/a, /b]", "roots: [/b, /a]", "roots"},
        {"devices: [host=1GiB]", "devices: [host=2GiB]", "devices"},
        {"devices: [{device: host, pages: 4k}]", "devices: [{device: host, pages: thp}]", "devices"},
        {"devices: [host]", "devices: [{device: host, prefaulted: 1GiB}]", "devices"},
        {"devices: [host]", "devices: [{device: host, prefaulted: auto}]", ""},
        {"devices: ['cuda:0']", "devices: ['cuda:0', 'cuda:1']", "devices"},
        {"devices: [{device: 'cuda:0', handles: cuda-ipc}]", "devices: [{device: 'cuda:0', handles: cuda-vmm-fd}]",
         "devices"},
        {"http: {allow_plain: [a]}", "http: {allow_plain: [a]}", ""},
        {"http: {allow_plain: [a]}", "http: {allow_plain: [b]}", "http.allow_plain"},
        {"", "http: {allow_plain: [a]}", "http.allow_plain"},
        {HOSTS("token: t"), HOSTS("token: t"), ""},
        {HOSTS("token: t"), HOSTS("token: u"), "http.hosts"},
        {HOSTS("token: t"), HOSTS("token_file: t"), "http.hosts"},
        {HOSTS("user: u, password: p"), HOSTS("user: u, password: q"), "http.hosts"},
        {HOSTS("token: t"), "", "http.hosts"},
        {SOURCES(", access_key: a, secret_key: b"), SOURCES(", access_key: a, secret_key: b"), ""},
        {SOURCES(", access_key: a, secret_key: b"), SOURCES(", access_key: a, secret_key: c"), "s3.sources"},
        {SOURCES(""), SOURCES(", unsigned: true"), "s3.sources"},
        {SOURCES(""), SOURCES(", unsigned: false"), "s3.sources"},
        {SOURCES(", addressing: path"), SOURCES(", addressing: virtual"), "s3.sources"},
        {"", SOURCES(""), "s3.sources"},
        {"io: {concurrency: 2}", "io: {concurrency: 3}\nhost_cache: 1GiB", "io.concurrency, host_cache"},
        {"log: {format: json}", "log: {format: plain}", "log.format"},
        /* The settings that a reload applies. */
        {"", "log: {level: debug}\nlimits: {loads: 3}", ""},
        {"", "access: {roles: [{role: load, users: 1}]}\npreload: [{source: /a}]", ""},
};

static void parse(struct config *config, const char *yaml)
{
        struct error error = {0};

        config_init(config);
        ck_assert_msg(config_parse_yaml(config, "f.yaml", yaml, strlen(yaml), &error) == 0, "%s", error.text);
}

TEST(changes_that_cannot_be_applied_are_named, EACH(changes))
{
        struct config running, next;
        char keys[256];

        parse(&running, changes[_i].running);
        parse(&next, changes[_i].next);
        reload_restart_keys(&running, &next, keys, sizeof(keys));
        ck_assert_str_eq(keys, changes[_i].keys);
        config_deinit(&running);
        config_deinit(&next);
}
