/* SPDX-License-Identifier: Apache-2.0
 *
 * Configuration values: units, the syntax of the file, and every error in it.
 */
#include "tests/lib/suite.h"

#include "daemon/base/util.h"
#include "daemon/config/reload.h"
#include "daemon/config/setting.h"

/* ---- units ---- */

static const struct {
        const char *text;
        uint64_t value;
} sizes[] = {
        {"0", 0},
        {"4096", 4096},
        {"1KiB", 1024},
        {"512MiB", 512 * MiB},
        {"8GiB", 8 * GiB},
        {"16777215TiB", UINT64_C(16777215) << 40},
        {"18446744073709551615", UINT64_MAX},
};

TEST(a_size_is_bytes_or_has_a_binary_unit, EACH(sizes))
{
        uint64_t bytes;
        ck_assert_int_eq(config_parse_size(sizes[_i].text, &bytes), 0);
        ck_assert_uint_eq(bytes, sizes[_i].value);
}

static const char *const bad_sizes[] = {"",      "-1",   "+1",     " 1",   "1 ",         "1 GiB",
                                        "1GB",   "1gib", "1.5GiB", "0x10", "GiB",        "18446744073709551616",
                                        "1GiBs", "1e3",  "1K",     "\t1",  "16777216TiB"};

TEST(an_ambiguous_size_is_invalid, EACH(bad_sizes))
{
        uint64_t bytes;
        ck_assert_int_eq(config_parse_size(bad_sizes[_i], &bytes), -1);
}

/* ---- the file ---- */

static struct config config;
static struct error error;

static void begin(void)
{
        config_init(&config);
}

static int parse(const char *yaml)
{
        return config_parse_yaml(&config, "f.yaml", yaml, strlen(yaml), &error);
}

static void assert_parses(const char *yaml)
{
        ck_assert_msg(parse(yaml) == 0, "%s", error.text);
}

FIXTURE(.each = {begin, NULL});

static const struct {
        const char *text;
        uint64_t ns; /* 0: it is refused */
} durations[] = {
        {"250ms", UINT64_C(250000000)},
        {"30s", UINT64_C(30000000000)},
        {"5m", UINT64_C(300000000000)},
        {"1h", UINT64_C(3600000000000)},
        {"30", 0},
        {"5124096h", 0},
        {"''", 0},
};

TEST(a_duration_has_a_unit, EACH(durations))
{
        int r = parse(format_text("exit_idle: %s", durations[_i].text));
        ck_assert_int_eq(r, durations[_i].ns != 0 ? 0 : STREAMER_EINVAL);
        ck_assert_uint_eq(config.exit_idle_ns, durations[_i].ns);
}

TEST(every_key_is_read)
{
        assert_parses("socket: /s\n"
                      "exit_idle: 10m\n"
                      "roots: [/a, \"/b c\"]\n"
                      "devices:\n"
                      "  - {device: host, budget: 8GiB, pages: thp, prefaulted: 3GiB}\n"
                      "io: {concurrency: 4, block_size: 2MiB, memory_limit: 64MiB, stall: 5s}\n"
                      "limits:\n"
                      "  connections: 1\n  connections_per_uid: 2\n  leases_per_uid: 21\n  loads_per_uid: 22\n"
                      "  models_per_uid: 24\n  bytes_per_uid: 23\n  leases_per_client: 3\n  loads: 4\n"
                      "  queued: 44\n  requests_per_client: 5\n  output_per_client: 6MiB\n  fds_in_flight: 700\n"
                      "  fds_per_client: 800\n  frame_timeout: 9s\n  preload_loads: 10\n"
                      "  preload_retry: 11ms\n  failed_kept: 0\n"
                      "log: {level: debug}\n");
        ck_assert_str_eq(config.socket, "/s");
        ck_assert_uint_eq(config.exit_idle_ns, UINT64_C(600000000000));
        ck_assert_uint_eq(config.n_roots, 2);
        ck_assert_str_eq(config.roots[1], "/b c");
        ck_assert_uint_eq(config.n_devices, 1);
        ck_assert_str_eq(config.devices[0].name, "host");
        ck_assert_uint_eq(config.devices[0].budget, 8 * GiB);
        ck_assert_uint_eq(config.devices[0].budget_percent, 0);
        ck_assert_int_eq(config.devices[0].pages, HOST_PAGES_THP);
        ck_assert_uint_eq(config.devices[0].prefault, 3 * GiB);
        ck_assert_uint_eq(config.io.concurrency, 4);
        ck_assert_uint_eq(config.io.block_size, 2 * MiB);
        ck_assert_uint_eq(config.io.memory_limit, 64 * MiB);
        ck_assert_uint_eq(config.io.stall_ns, UINT64_C(5000000000));
        const struct limits want = {
                1, {2, 21, 22, 24, 23}, 3, 4, 44, 5, 700, 800, {6 * MiB, UINT64_C(9000000000)}, 10, 11000000, 0};
        ck_assert_mem_eq(&config.limits, &want, sizeof(want));
        ck_assert_int_eq(config.log.level, LOG_LEVEL_DEBUG);
}

static const char *const empty_files[] = {"", "\n", "# only a comment\n", "---\n", "--- {}\n...\n", "{}"};

TEST(an_empty_file_changes_nothing, EACH(empty_files))
{
        struct config defaults;
        config_init(&defaults);
        assert_parses(empty_files[_i]);
        ck_assert_mem_eq(&config, &defaults, sizeof(config));
}

static const struct {
        const char *spare;
        uint64_t bytes;
} spares[] = {{"auto", PREFAULT_AUTO}, {"0", 0}, {"4096", 4096}, {"2GiB", 2 * GiB}};

TEST(prefault_is_a_size_or_auto, EACH(spares))
{
        char *yaml = format_text("devices: [{device: host, prefaulted: %s}]", spares[_i].spare);
        assert_parses(yaml);
        ck_assert_uint_eq(config.devices[0].prefault, spares[_i].bytes);
}

static const struct {
        const char *device, *name;
        uint64_t budget;
        unsigned percent;
} devices[] = {
        {"host", "host", 0, 90},
        {"host=4096", "host", 4096, 0},
        {"host=1TiB", "host", GiB << 10, 0},
        {"host=50%", "host", 0, 50},
        {"host=100%", "host", 0, 100},
        {"{device: host}", "host", 0, 90},
        {"{budget: 1%, device: host}", "host", 0, 1},
};

TEST(a_device_is_a_word_or_a_mapping, EACH(devices))
{
        char *yaml = format_text("devices: [%s]", devices[_i].device);
        assert_parses(yaml);
        ck_assert_str_eq(config.devices[0].name, devices[_i].name);
        ck_assert_uint_eq(config.devices[0].budget, devices[_i].budget);
        ck_assert_uint_eq(config.devices[0].budget_percent, devices[_i].percent);
        ck_assert_int_eq(config.devices[0].pages, HOST_PAGES_AUTO);
        ck_assert_uint_eq(config.devices[0].prefault, PREFAULT_AUTO);
}

TEST(sources_of_other_stores)
{
        assert_parses("s3:\n  addressing: virtual\n  sources:\n"
                      "    - {source: 's3://a', endpoint: 'http://x', region: r, ca: c, profile: p, addressing: path,\n"
                      "       unsigned: true}\n"
                      "    - source: s3://b/c/\n      access_key: id\n      secret_key: file:/k\n"
                      "      session_token: t\n      unsigned: false\n  region: eu\n");
        ck_assert_uint_eq(config.n_s3_sources, 2);
        ck_assert_str_eq(config.s3_sources[0].endpoint, "http://x");
        ck_assert_int_eq(config.s3_sources[0].addressing, S3_PATH);
        ck_assert(config.s3_sources[0].is_unsigned && !config.s3_sources[0].is_signed);
        ck_assert(config.s3_sources[1].is_signed && !config.s3_sources[1].is_unsigned);
        ck_assert_str_eq(config.s3_sources[1].source, "s3://b/c/");
        ck_assert_str_eq(config.s3_sources[1].secret_key, "file:/k");
        ck_assert_str_eq(config.s3_sources[1].session_token, "t");
        ck_assert_ptr_null(config.s3_sources[1].endpoint);
        ck_assert_int_eq(config.s3.addressing, S3_VIRTUAL);
        ck_assert_str_eq(config.s3.region, "eu");
}

#define RULE(text) "access: {roles: [{" text "}]}"
#define AT(key) "f.yaml:1: access.roles[0]" key ": "

static const struct {
        const char *yaml, *what;
} bad_files[] = {
        /* keys */
        {"colour: red", "f.yaml:1: colour: unknown key"},
        {"\n\nio:\n  speed: 9", "f.yaml:4: io.speed: unknown key"},
        {"'': 1", "f.yaml:1: unknown key"},
        {"? [a]\n: b", "f.yaml:1: a key must be a word"},
        {"io: {[a]: b}", "f.yaml:1: io: a key must be a word"},
        {"http: {allow_plain: example.org}", "f.yaml:1: http.allow_plain: takes a list"},
        {"http: {allow_plain: ['http://example.org/']}", "f.yaml:1: http.allow_plain[0]: takes hosts"},
        {"http: {allow_plain: [{host: x}]}", "f.yaml:1: http.allow_plain[0]: takes hosts"},
        {"http: {hosts: [example.org]}", "f.yaml:1: http.hosts[0]: takes keys of its own"},
        {"http: {hosts: [{token: t}]}", "f.yaml:1: http.hosts[0]: has no 'host'"},
        {"http: {hosts: [{host: h}]}", "f.yaml:1: http.hosts[0]: takes token or token_file, or user with password"},
        {"http: {hosts: [{host: h, user: u}]}", "takes token or token_file, or user with password"},
        {"http: {hosts: [{host: h, token: t, user: u, password: p}]}", "takes token or token_file, or user"},
        {"http: {hosts: [{host: h, token: t, token_file: f}]}", "a value and a file for the same secret"},
        {"http: {hosts: [{host: h, token: t}, {host: h, token: t}]}",
         "f.yaml:1: http.hosts[1]: the host is listed twice"},
        {"http: {tries: 0}", "f.yaml:1: http.tries: 0 is not within 1 to 100"},
        {"http: {stall: 1ms}", "f.yaml:1: http.stall: 1ms is not within 100ms to 1h"},
        {"s3: {sources: {}}", "f.yaml:1: s3.sources: takes a list"},
        {"s3: {sources: [a]}", "f.yaml:1: s3.sources[0]: takes keys of its own"},
        {"s3: {sources: [{}]}", "f.yaml:1: s3.sources[0]: has no 'source' that begins with s3://BUCKET"},
        {"s3: {sources: [{source: /a}]}", "f.yaml:1: s3.sources[0]: has no 'source'"},
        {"s3: {sources: [{source: 's3://b', access_key: x}]}", "of access_key and secret_key one is given without"},
        {"s3: {sources: [{source: 's3://b', session_token: x}]}", "session_token without access_key"},
        {"s3: {sources: [{source: 's3://b', unsigned: x}]}", "s3.sources[0].unsigned: neither true nor false"},
        {"s3: {sources: [{source: 's3://b', unsigned: true, access_key: x, secret_key: y}]}",
         "unsigned, and with keys"},
        {"s3: {sources: [{source: 's3://b'}, {source: 's3://b'}]}", "the source is listed twice"},
        {"gcs: {sources: [{source: 's3://b'}]}",
         "f.yaml:1: gcs.sources[0]: has no 'source' that begins with gs://BUCKET"},
        {"gcs: {sources: [{source: 'gs://b', anonymous: true, credentials: x}]}", "anonymous, and with credentials"},
        {"gcs: {sources: [{source: 'gs://b', anonymous: x}]}", "gcs.sources[0].anonymous: neither true nor false"},
        {"gcs: {sources: [{source: 'gs://b'}, {source: 'gs://b'}]}", "the source is listed twice"},
        {"gcs: {anonymous: 1}", "f.yaml:1: gcs.anonymous: "},
        {"azure: {sources: [{source: 'gs://b'}]}", "azure.sources[0]: has no 'source' that begins with az://BUCKET"},
        {"azure: {sources: [{source: 'az://b', anonymous: true, sas_token: x}]}", "anonymous, and with credentials"},
        {"azure: {sources: [{source: 'az://b', anonymous: x}]}", "azure.sources[0].anonymous: neither true nor false"},
        {"gcs: {token_hosts: ['a/b']}", "f.yaml:1: gcs.token_hosts[0]: takes hosts"},
        {"s3: {addressing: x}", "f.yaml:1: s3.addressing: 'x' is not auto, path or virtual"},
        {"host_cache: {}", "f.yaml:1: host_cache: takes a single value"},
        {"disk_cache: {path: cache}", "f.yaml:1: disk_cache.path: 'cache' is not an absolute path"},
        {"disk_cache: {also: /mnt/nfs}", "f.yaml:1: disk_cache.also: takes a list"},
        {"disk_cache: {also: [{path: /mnt/nfs}]}", "f.yaml:1: disk_cache.also[0]: takes paths of folders"},
        {"disk_cache: {also: [nfs]}", "f.yaml:1: disk_cache.also[0]: 'nfs' is not an absolute path"},
        {"disk_cache: {also: [/mnt/nfs/.., /a]}",
         "f.yaml:1: disk_cache.also[0]: '/mnt/nfs/..' matches no file: name it without '.', '..' and '//'"},
        {"disk_cache: {also: [/a, /../mnt]}", "f.yaml:1: disk_cache.also[1]: '/../mnt' matches no file"},
        {"disk_cache: {also: [/mnt/./nfs]}", "f.yaml:1: disk_cache.also[0]: '/mnt/./nfs' matches no file"},
        {"disk_cache: {also: [/mnt//nfs]}", "f.yaml:1: disk_cache.also[0]: '/mnt//nfs' matches no file"},
        {"disk_cache: {min_free: 100%}", "disk_cache.min_free: 100% is not within 0% to 99%"},
        {"disk_cache: {min_free: much}", "disk_cache.min_free: 'much' is neither a size nor a percentage"},
        {"socket: /a\nsocket: /b", "f.yaml:2: socket: given twice"},
        {"io: {stall: 2s}\nlog: {}\nio: {}", "f.yaml:3: io: given twice"},
        /* shapes */
        {"just a word", "f.yaml:1: must be a mapping of keys"},
        {"[1, 2]", "f.yaml:1: must be a mapping of keys"},
        {"socket: [a]", "f.yaml:1: socket: takes a single value"},
        {"io: 4", "f.yaml:1: io: takes keys of its own"},
        {"io: {stall: {a: b}}", "f.yaml:1: io.stall: takes a single value"},
        {"roots: /a", "f.yaml:1: roots: takes a list"},
        {"roots: [[/a]]", "f.yaml:1: roots[0]: a root is a path"},
        {"devices: [[host]]", "f.yaml:1: devices[0]: a device is a word"},
        {"devices: [{device: [host]}]", "f.yaml:1: devices[0].device: takes a single value"},
        /* YAML features that are refused because they hide the meaning of a file */
        {"socket: &a /s", "f.yaml:1: anchors are not supported"},
        {"&a io: {}", "f.yaml:1: anchors are not supported"},
        {"socket: *a", "f.yaml:1: aliases are not supported"},
        {"socket: !!str /s", "f.yaml:1: tags are not supported"},
        {"--- {}\n--- {}", "f.yaml:2: more than one document"},
        {"socket: \"a\\0b\"", "f.yaml:1: socket: a NUL byte"},
        {"socket: /b: c", "f.yaml:1: not YAML"},
        {"socket: \"/s", "not YAML"},
        {"\xff", "not YAML"},
        /* values */
        {"socket:", "f.yaml:1: socket: has no value"},
        {"socket: relative", "f.yaml:1: socket: 'relative' is not an absolute path"},
        {"roots: [relative]", "f.yaml:1: roots[0]: 'relative' is not an absolute path"},
        {"io: {concurrency: 0}", "f.yaml:1: io.concurrency: 0 is not within 1 to 1024"},
        {"io: {concurrency: 1KiB}", "f.yaml:1: io.concurrency: '1KiB' is not a number"},
        {"io: {concurrency: 99999999999999999999}", "is not a number"},
        {"io: {block_size: 2GiB}", "f.yaml:1: io.block_size: 2GiB is not within 1MiB to 1GiB"},
        {"io: {block_size: 1048577}", "f.yaml:1: io.block_size: 1048577 is not a multiple of 1MiB"},
        {"io: {block_size: 8MB}", "f.yaml:1: io.block_size: '8MB' is not a size"},
        {"io: {stall: 30}", "f.yaml:1: io.stall: '30' is not a duration"},
        {"io: {stall: 999ms}", "f.yaml:1: io.stall: 999ms is not within 1s to 1h"},
        {"limits: {connections: 0}", "f.yaml:1: limits.connections: 0 is not within 1 to 1000000"},
        {"limits: {fds_per_client: 66}", "f.yaml:1: limits.fds_per_client: 66 is not within 128 to 1000000"},
        {"limits: {output_per_client: 1}", "f.yaml:1: limits.output_per_client: 1 is not within 1MiB to 1GiB"},
        {"log: {format: xml}", "f.yaml:1: log.format: 'xml' is not auto, plain, prefix, journal or json"},
        {"metrics: {listen: ':9464'}", "':9464' is neither ADDRESS:PORT nor unix:/path"},
        {"metrics: {listen: 9464}", "is neither ADDRESS:PORT nor unix:/path"},
        {"metrics: {listen: 'example.org:9464'}", "is neither ADDRESS:PORT nor unix:/path"},
        {"metrics: {listen: '::1:9464'}", "is neither ADDRESS:PORT nor unix:/path"},
        {"metrics: {listen: '127.0.0.1:65536'}", "the port is not within 0 to 65535"},
        {"metrics: {listen: '127.0.0.1:'}", "the port is not within 0 to 65535"},
        {"metrics: {listen: 'unix:relative'}", "'relative' is not an absolute path"},
        {"log: {level: loud}", "f.yaml:1: log.level: 'loud' is not error, warn, info or debug"},
        /* devices */
        {"devices: ['']", "f.yaml:1: devices[0]: '' is not a device"},
        {"devices: [gpu]", "f.yaml:1: devices[0]: 'gpu' is not a device"},
        {"devices: ['cuda:']", "f.yaml:1: devices[0]: 'cuda:' is not a device"},
        {"devices: [{device: 'cuda:0', pages: thp}]", "f.yaml:1: devices[0]: pages: of the host device only"},
        {"devices: [{device: host, handles: cuda-ipc}]", "f.yaml:1: devices[0]: handles: of CUDA devices only"},
        {"devices: [{device: 'cuda:0', handles: fd}]",
         "f.yaml:1: devices[0].handles: 'fd' is not cuda-ipc or cuda-vmm-fd"},
        {"cuda: {segment_size: 3MiB}", "f.yaml:1: cuda.segment_size: 3MiB is not a multiple of 2MiB"},
        {"devices: [host=]", "f.yaml:1: devices[0]: '' is not a budget"},
        {"devices: [host=0%]", "f.yaml:1: devices[0]: '0%' is not within 1% to 100%"},
        {"devices: [host, host]", "f.yaml:1: devices[1]: host is listed twice"},
        {"devices: [{budget: 1GiB}]", "f.yaml:1: devices[0]: has no 'device'"},
        {"devices: [{device: host, pages: 2m}]", "f.yaml:1: devices[0].pages: '2m' is not auto, hugetlb, thp or 4k"},
        {"preload: [{source: /a, keep_alive: 8785h}]", "keep_alive: 8785h is not within 0s to 8784h"},
        {"devices: [{device: host, prefaulted: much}]",
         "f.yaml:1: devices[0].prefaulted: 'much' is not auto or a size"},
        {"devices: [{device: 'cuda:0', prefaulted: 1GiB}]",
         "f.yaml:1: devices[0]: prefaulted: of the host device only"},
        {"devices: [{device: host, colour: red}]", "f.yaml:1: devices[0].colour: unknown key"},
        {"devices: [{device: host, device: host}]", "f.yaml:1: devices[0].device: given twice"},
        /* rules */
        {"access: 1", "f.yaml:1: access: takes keys of its own"},
        {"access: {rules: []}", "f.yaml:1: access.rules: unknown key"},
        {"access: {roles: 1}", "f.yaml:1: access.roles: takes a list"},
        {"access: {roles: [load]}", AT("") "takes keys of its own"},
        {RULE("users: 1"), AT("") "has no 'role'"},
        {RULE("role: load"), AT("") "names no user: it requires 'users' or 'groups'"},
        {RULE("role: load, users: []"), AT("") "names no user"},
        {RULE("role: boss, users: 1"), AT(".role") "'boss' is not attach, load or admin"},
        {RULE("role: none, users: 1"), AT(".role") "'none' is not attach, load or admin"},
        {RULE("role: [load], users: 1"), AT(".role") "takes a single value"},
        {RULE("role: load, role: load, users: 1"), AT(".role") "given twice"},
        {RULE("role: load, user: 1"), AT(".user") "unknown key"},
        {RULE("role: load, users: no-such-user-here"), AT(".users") "there is no user 'no-such-user-here'"},
        {RULE("role: load, groups: no-such-group-here"), AT(".groups") "there is no group 'no-such-group-here'"},
        {RULE("role: load, users: -1"), AT(".users") "there is no user '-1'"},
        {RULE("role: load, users: 4294967295"), AT(".users") "'4294967295' is no user's number"},
        {RULE("role: load, users: [[1]]"), AT(".users") "takes a list of single values"},
        {RULE("role: load, users: {a: 1}"), AT(".users") "takes a list of single values"},
        {RULE("role: load, users: 1, roots: [srv]"), AT(".roots") "'srv' is not an absolute path"},
        {RULE("role: load, users: 1, roots: [/srv/../etc]"), AT(".roots") "/srv/../etc: '..' is not allowed"},
        {RULE("role: load, users: 1, buckets: [bucket]"), AT(".buckets") "'bucket' is not the beginning of a URI"},
        {RULE("role: load, users: 1, buckets: ['://x']"), AT(".buckets") "'://x' is not the beginning of a URI"},
        {RULE("role: load, users: 1, loads: 0"), AT(".loads") "0 is less than 1"},
        {RULE("role: load, users: 1, bytes: 1GB"), AT(".bytes") "'1GB' is not a size"},
};

TEST(an_error_in_the_file_names_file_line_and_key, EACH(bad_files))
{
        FAILS_WITH(error, parse(bad_files[_i].yaml), STREAMER_EINVAL, bad_files[_i].what);
}

/* ---- access ---- */

static const struct role_rule *parse_one(const char *yaml)
{
        ck_assert_msg(parse(yaml) == 0, "%s", error.text);
        ck_assert_uint_ge(config.access.n, 1);
        return &config.access.rules[0];
}

TEST(without_access_rules_the_default_applies)
{
        ck_assert_int_eq(parse("roots: [/a]"), 0);
        ck_assert(!config.access.given);
        ck_assert_int_eq(parse("access: {}"), 0);
        ck_assert(!config.access.given);
}

TEST(an_empty_list_of_rules_is_no_default)
{
        ck_assert_int_eq(parse("access: {roles: []}"), 0);
        ck_assert(config.access.given);
        ck_assert_uint_eq(config.access.n, 0);
}

TEST(every_key_of_a_rule_is_read)
{
        const struct role_rule *rule =
                parse_one("access:\n  roles:\n    - role: load\n      users: [root, 7]\n      groups: [root, '8']\n"
                          "      roots: [/srv/a/, /srv//b]\n      buckets: ['s3://b/']\n      connections: 1\n"
                          "      leases: 2\n      loads: 3\n      models: 5\n      bytes: 4GiB\n");
        ck_assert_int_eq(rule->role, ROLE_LOAD);
        ck_assert_uint_eq(rule->line, 3);
        ck_assert_uint_eq(rule->users.n, 2);
        ck_assert_uint_eq(rule->users.v[0], 0);
        ck_assert_uint_eq(rule->users.v[1], 7);
        ck_assert_uint_eq(rule->groups.v[1], 8);
        ck_assert_str_eq(rule->roots.v[0], "/srv/a");
        ck_assert_str_eq(rule->roots.v[1], "/srv/b");
        ck_assert_str_eq(rule->buckets.v[0], "s3://b/");
        ck_assert_uint_eq(rule->max[QUOTA_CONNECTIONS], 1);
        ck_assert_uint_eq(rule->max[QUOTA_LEASES], 2);
        ck_assert_uint_eq(rule->max[QUOTA_LOADS], 3);
        ck_assert_uint_eq(rule->max[QUOTA_MODELS], 5);
        ck_assert_uint_eq(rule->max[QUOTA_BYTES], 4 * GiB);
        ck_assert_str_eq(config.access.file, "f.yaml");
}

TEST(a_single_value_is_a_list_of_one)
{
        const struct role_rule *rule = parse_one("access: {roles: [{role: attach, users: '*'}]}");
        ck_assert(rule->users.n == 1 && rule->users.v[0] == ROLE_ANYONE);
        ck_assert(!rule->roots.given);
        ck_assert(!rule->buckets.given);
}

TEST(an_empty_list_is_returned)
{
        const struct role_rule *rule = parse_one("access: {roles: [{role: load, users: 1, buckets: []}]}");
        ck_assert(rule->buckets.given);
        ck_assert_uint_eq(rule->buckets.n, 0);
}

TEST(a_rules_root_must_be_below_a_root_of_the_daemon)
{
        char *path = suite_path("rules.yaml");
        const char *yaml = "access: {roles: [{role: load, users: 1, roots: [/srv/a, /elsewhere]}]}";
        char *argv[] = {(char[]){"streamerd"}, (char[]){"--config"}, path, (char[]){"--device=host"},
                        (char[]){"--root=/srv/"}};
        file_write(path, yaml, strlen(yaml));
        FAILS_WITH(error, config_load(&config, ARRAY_SIZE(argv), argv, &error), STREAMER_EINVAL,
                   ":1: access.roles[0].roots: /elsewhere is below none of the daemon's own roots");
}

/* ---- which changes require a restart ---- */

#define HOSTS(rest) "http: {hosts: [{host: a, " rest "}]}"
#define SOURCES(rest) "s3: {sources: [{source: 's3://a'" rest "}]}"

static const struct {
        const char *running, *next, *keys;
} changes[] = {
        {"roots: [/a]", "roots: [/a]", ""},
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
        {"", "gcs: {sources: [{source: 'gs://a'}]}", "gcs.sources"},
        {"", "azure: {sources: [{source: 'az://a'}]}", "azure.sources"},
        {"", "azure: {account_key: 'file:/k'}", "azure.account_key"},
        {"", "gcs: {credentials: 'file:/k'}", "gcs.credentials"},
        {"", SOURCES(""), "s3.sources"},
        {"io: {concurrency: 2}", "io: {concurrency: 3}\nhost_cache: 1GiB", "io.concurrency, host_cache"},
        {"log: {format: json}", "log: {format: plain}", "log.format"},
        /* The settings that a reload applies. */
        {"", "log: {level: debug}\nlimits: {loads: 3}", ""},
        {"", "access: {roles: [{role: load, users: 1}]}\npreload: [{source: /a}]", ""},
        {"roots: [/a]", "roots: [/a, /b]", ""},
        {"disk_cache: {path: /a, budget: 1GiB}", "disk_cache: {path: /a, budget: 2GiB, min_free: 1GiB}", ""},
        {"disk_cache: {path: /a, budget: 1GiB}", "disk_cache: {path: /b, budget: 1GiB}", "disk_cache.path"},
        {"disk_cache: {also: [/a]}", "disk_cache: {also: [/a, /b]}", "disk_cache.also"},
};

TEST(changes_that_cannot_be_applied_are_named, EACH(changes))
{
        char keys[256];
        assert_parses(changes[_i].running);
        struct config running = config;
        config_init(&config);
        assert_parses(changes[_i].next);
        reload_restart_keys(&running, &config, keys, sizeof(keys));
        ck_assert_str_eq(keys, changes[_i].keys);
}

/* ---- bounds ---- */

TEST(a_key_of_any_length_is_unknown)
{
        char *yaml = must_alloc(5010);
        memset(yaml, 'k', 5000);
        ck_assert_int_eq(parse(strcat(yaml, ": 1")), STREAMER_EINVAL);
}

TEST(depth_is_bounded_by_the_grammar)
{
        char *yaml = must_alloc(100001);
        memset(yaml, '[', 100000);
        ck_assert_int_eq(parse(yaml), STREAMER_EINVAL);
}

TEST(a_list_is_bounded)
{
        char *yaml = must_alloc(1000);
        strcpy(yaml, "roots: [");
        for (int i = 0; i <= SETTING_LIST_MAX; i++)
                strcat(yaml, "/a,");
        FAILS_WITH(error, parse(strcat(yaml, "]")), STREAMER_EINVAL, "more than 64 entries");
}

/* ---- documentation ---- */

TEST(the_documented_file_shows_the_defaults)
{
        struct config documented;
        size_t size;
        char *yaml = file_read("config/streamerd.yaml", &size);
        config_init(&documented);
        ck_assert_int_eq(config_parse_yaml(&documented, "streamerd.yaml", yaml, size, &error), 0);
        ck_assert_mem_eq(&documented.io, &config.io, sizeof(config.io));
        ck_assert_mem_eq(&documented.limits, &config.limits, sizeof(config.limits));
        ck_assert_int_eq(documented.log.level, config.log.level);
        ck_assert_str_eq(documented.socket, CONFIG_DEFAULT_SOCKET);
        ck_assert_uint_eq(documented.devices[0].budget_percent, 90);
}

TEST(the_documented_file_has_every_key)
{
        char *yaml = file_read("config/streamerd.yaml", NULL);
        for (size_t i = 0; i < n_settings; i++) {
                if (settings[i].key == NULL || settings[i].kind == SETTING_LIST)
                        continue;
                const char *dot = strchr(settings[i].key, '.');
                char *line = format_text("\n%s%s: ", dot != NULL ? "  " : "", dot != NULL ? dot + 1 : settings[i].key);
                ck_assert_msg(strstr(yaml, line) != NULL, "%s is not documented", settings[i].key);
        }
}
