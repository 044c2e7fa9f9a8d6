/* SPDX-License-Identifier: Apache-2.0
 *
 * The requests that a client may send, as one table of verbs and fields. From it follow the
 * structs below, the decoder and encoder (codec.h), the daemon's list of features and
 * the tables of docs/protocol.md.
 *
 * A field: F(verb, type, name, required, limit). Types: STR (UTF-8, no NUL; limit = bytes), U64 (limit =
 * largest value; 0 = any), BOOL, STRLIST (limit = number of strings, each at most 255 bytes).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PROTOCOL_MIN 2u
#define PROTOCOL_MAX 2u

#define PROTO_NAME_MAX 1024 /* bytes of a model's name */
#define PROTO_CURSOR_MAX 63 /* bytes of where a page of status begins */
#define PROTO_PRIORITY_MAX 10000
#define PROTO_PRIORITY_DEFAULT 100
#define PROTO_DURATION_MAX UINT64_C(31622400000) /* milliseconds: a leap year's */
#define PROTO_FILE_MAX 512                       /* bytes of the name of a file beside the weights */
#define PROTO_TEXT_MAX 8192                      /* bytes of a source, a tensor's name, a path */
#define PROTO_KEY_MAX 100                        /* fields of a published model's key */

enum field_type { FIELD_STR, FIELD_U64, FIELD_BOOL, FIELD_STRLIST };

// clang-format off
#define FIELDS_hello(F) \
        F(hello, U64, min, true, 0) \
        F(hello, U64, max, true, 0) \
        F(hello, STR, client, false, 255) \
        F(hello, U64, features, false, 0)
#define FIELDS_ping(F)
#define FIELDS_version(F)
#define FIELDS_load(F) \
        F(load, STR, source, true, PROTO_TEXT_MAX) \
        F(load, STR, name, false, PROTO_NAME_MAX) \
        F(load, STR, named_after, false, PROTO_TEXT_MAX) \
        F(load, STRLIST, devices, false, 64) \
        F(load, STR, layout, false, 16) \
        F(load, STR, pattern, false, 255) \
        F(load, STR, verify, false, 16) \
        F(load, U64, priority, false, PROTO_PRIORITY_MAX) \
        F(load, BOOL, wait, false, 0) \
        F(load, BOOL, no_evict, false, 0) \
        F(load, BOOL, pin, false, 0) \
        F(load, U64, keep_alive_ms, false, PROTO_DURATION_MAX) \
        F(load, U64, drain_timeout_ms, false, PROTO_DURATION_MAX) \
        F(load, BOOL, dry_run, false, 0) \
        F(load, BOOL, watch, false, 0) \
        F(load, BOOL, attach, false, 0) \
        F(load, STR, device, false, 255)
#define FIELDS_cancel(F) \
        F(cancel, STR, model, true, PROTO_NAME_MAX)
#define FIELDS_set_priority(F) \
        F(set_priority, STR, model, true, PROTO_NAME_MAX) \
        F(set_priority, U64, priority, true, PROTO_PRIORITY_MAX)
#define FIELDS_keep_alive(F) \
        F(keep_alive, STR, model, true, PROTO_NAME_MAX) \
        F(keep_alive, U64, keep_alive_ms, false, PROTO_DURATION_MAX)
#define FIELDS_list(F) \
        F(list, STR, after, false, PROTO_NAME_MAX) \
        F(list, U64, limit, false, 0)
#define FIELDS_show(F) \
        F(show, STR, model, true, PROTO_NAME_MAX) \
        F(show, STR, device, false, 255) \
        F(show, BOOL, tensors, false, 0) \
        F(show, BOOL, ended, false, 0) \
        F(show, U64, offset, false, 0) \
        F(show, U64, limit, false, 0)
#define FIELDS_status(F) \
        F(status, STR, after, false, PROTO_CURSOR_MAX) \
        F(status, U64, limit, false, 0)
#define FIELDS_ps(F) \
        F(ps, U64, after, false, 0) \
        F(ps, U64, limit, false, 0)
#define FIELDS_wait(F) \
        F(wait, STR, model, true, PROTO_NAME_MAX) \
        F(wait, U64, timeout_ms, false, PROTO_DURATION_MAX)
#define FIELDS_verify(F) \
        F(verify, STR, model, true, PROTO_NAME_MAX)
#define FIELDS_unload(F) \
        F(unload, STR, model, true, PROTO_NAME_MAX) \
        F(unload, STR, device, false, 255) \
        F(unload, BOOL, drain, false, 0) \
        F(unload, BOOL, force, false, 0) \
        F(unload, U64, drain_timeout_ms, false, PROTO_DURATION_MAX)
#define FIELDS_attach(F) \
        F(attach, STR, model, false, PROTO_NAME_MAX) \
        F(attach, STR, device, false, 255) \
        F(attach, STR, digest, false, 32) \
        F(attach, U64, generation, false, 0) \
        F(attach, BOOL, ready, false, 0) \
        F(attach, U64, timeout_ms, false, PROTO_DURATION_MAX)
#define FIELDS_reclaim(F) \
        F(reclaim, STR, token, true, 32) \
        F(reclaim, U64, generation, true, 0) \
        F(reclaim, STR, digest, true, 32)
#define FIELDS_detach(F) \
        F(detach, U64, lease, true, 0)
#define FIELDS_subscribe(F) \
        F(subscribe, STR, model, false, PROTO_NAME_MAX)
#define FIELDS_pin(F) \
        F(pin, STR, model, true, PROTO_NAME_MAX)
#define FIELDS_unpin(F) \
        F(unpin, STR, model, true, PROTO_NAME_MAX)
#define FIELDS_metrics(F)
#define FIELDS_doctor(F) \
        F(doctor, STR, root, false, PROTO_TEXT_MAX)
#define FIELDS_probe(F) \
        F(probe, STR, device, false, 255)
#define FIELDS_fetch(F) \
        F(fetch, STR, source, true, PROTO_TEXT_MAX) \
        F(fetch, STR, file, false, PROTO_FILE_MAX) \
        F(fetch, BOOL, weights, false, 0) \
        F(fetch, U64, more, false, 0)
#define FIELDS_diff(F) \
        F(diff, STR, model, true, PROTO_NAME_MAX) \
        F(diff, STR, source, true, PROTO_TEXT_MAX)
#define FIELDS_publish_find(F) \
        F(publish_find, STR, model, true, PROTO_NAME_MAX) \
        F(publish_find, STRLIST, key, false, PROTO_KEY_MAX) \
        F(publish_find, STR, base, false, PROTO_TEXT_MAX) \
        F(publish_find, STR, base_model, false, PROTO_NAME_MAX) \
        F(publish_find, STR, device, false, 255) \
        F(publish_find, BOOL, claim, false, 0) \
        F(publish_find, BOOL, replace, false, 0) \
        F(publish_find, BOOL, wait, false, 0) \
        F(publish_find, U64, timeout_ms, false, PROTO_DURATION_MAX)
#define FIELDS_publish_begin(F) \
        F(publish_begin, U64, claim, true, 0) \
        F(publish_begin, U64, bytes, true, 0) \
        F(publish_begin, BOOL, tensors, false, 0)
#define FIELDS_publish_segment(F) \
        F(publish_segment, U64, claim, true, 0) \
        F(publish_segment, U64, bytes, true, 0)
#define FIELDS_publish_commit(F) \
        F(publish_commit, U64, claim, true, 0) \
        F(publish_commit, U64, segment, true, 0) \
        F(publish_commit, U64, offset, true, 0) \
        F(publish_commit, U64, bytes, true, 0)
#define FIELDS_publish_abort(F) \
        F(publish_abort, U64, claim, true, 0)
#define FIELDS_whoami(F)
#define FIELDS_reload(F)
#define FIELDS_config(F)
#define FIELDS_cache(F) \
        F(cache, STR, of, false, PROTO_TEXT_MAX) \
        F(cache, STR, after, false, 64)
#define FIELDS_cache_remove(F) \
        F(cache_remove, STR, of, true, PROTO_TEXT_MAX)
#define FIELDS_cache_verify(F) \
        F(cache_verify, STR, of, false, PROTO_TEXT_MAX)
#define FIELDS_shutdown(F) \
        F(shutdown, BOOL, drain, false, 0)

#define VERBS(V) \
        V(hello) V(ping) V(version) V(load) V(cancel) V(list) V(show) V(status) V(ps) V(wait) V(verify) V(unload) \
        V(attach) V(reclaim) V(detach) V(subscribe) V(set_priority) V(keep_alive) V(pin) V(unpin) V(metrics) V(doctor) \
        V(probe) V(fetch) V(publish_find) V(publish_begin) V(publish_segment) V(publish_commit) V(publish_abort) \
        V(whoami) V(reload) V(config) V(shutdown) V(diff) V(cache) V(cache_remove) V(cache_verify)
// clang-format on

enum verb {
#define V(name) VERB_##name,
        VERBS(V)
#undef V
                VERB_COUNT
};

struct strlist {
        const char **v;
        size_t n;
};

#define FIELD_CTYPE_STR const char * /* NULL if absent */
#define FIELD_CTYPE_U64 uint64_t     /* 0 if absent */
#define FIELD_CTYPE_BOOL bool
#define FIELD_CTYPE_STRLIST struct strlist
#define F(verb, type, name, required, limit) FIELD_CTYPE_##type name;
#define V(verb)                                                                                                        \
        struct req_##verb {                                                                                            \
                FIELDS_##verb(F) char unused_;                                                                         \
        };
VERBS(V)
#undef V
#undef F

/* One request. Strings are NUL-terminated and owned by the request once decoded. */
struct request {
        enum verb verb;
        uint64_t id;
        union {
#define V(name) struct req_##name name;
                VERBS(V)
#undef V
        } u;
        void *memory; /* of the decoder */
};

struct field_desc {
        const char *name;
        enum field_type type;
        bool required;
        uint64_t limit;
        size_t offset; /* in the union's member */
};

struct verb_desc {
        const char *name;
        enum verb verb;
        const struct field_desc *fields;
        size_t n_fields;
};

const struct verb_desc *verb_desc(enum verb verb);
const struct verb_desc *verb_find(const char *name, size_t len); /* NULL if unknown */
