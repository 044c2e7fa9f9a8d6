/* SPDX-License-Identifier: Apache-2.0
 *
 * The one table of verbs and flags. What is added here is parsed, helped and completed; the manual
 * page is compared with it. Words of `args` and of a flag's `value` are in capitals, and say to
 * completion what stands there: MODEL, SOURCE, TENSOR, VERB, DEVICE, PATH.
 */
#include "client/streamerctl/ctl.h"

#define AT(field) offsetof(struct ctl, field)

const struct flag global_flags[] = {
        {"--socket", NULL, "PATH", "the daemon's socket ($STREAMERD_SOCKET)", FLAG_STR, AT(socket)},
        {"-o", NULL, "FORMAT", "table, wide or json", FLAG_FORMAT, 0},
        {"--json", NULL, NULL, "the same as -o json", FLAG_JSON, 0},
        {"--timeout", NULL, "SECONDS", "for one reply (10); for 'wait', until the model is ready", FLAG_SECONDS, 0},
        {"--no-progress", NULL, NULL, "no progress on standard error", FLAG_BOOL, AT(no_progress)},
        {"--quiet", "-q", NULL, "nothing on standard error but errors", FLAG_BOOL, AT(quiet)},
        {"--help", "-h", NULL, "this text, or the verb's", FLAG_BOOL, AT(help)},
        {"--version", NULL, NULL, "streamerctl's own version", FLAG_BOOL, AT(version)},
        {0},
};

static const struct flag load_flags[] = {
        {"--name", NULL, "NAME", "the model's name; default: from the source", FLAG_STR, AT(name)},
        {"--device", NULL, "DEVICE", "host, cuda:N or N; several (0,1, or again) for replicas", FLAG_DEVICE, 0},
        {"--layout", NULL, "HOW", "replica, or rank: rank r to the r-th device", FLAG_STR, AT(layout)},
        {"--pattern", NULL, "PATTERN", "of the ranks' files, with {rank} and {part}", FLAG_STR, AT(pattern)},
        {"--detach", NULL, NULL, "do not wait: print the model's name", FLAG_BOOL, AT(detach)},
        {"--verify", NULL, "HOW", "none, or sha256 against published digests", FLAG_STR, AT(verify)},
        {"--priority", NULL, "N", "1 to 10000: its share where loads run side by side (100)", FLAG_STR, AT(priority)},
        {"--wait", NULL, NULL, "where it does not fit, wait for memory instead of failing", FLAG_BOOL, AT(wait)},
        {"--no-evict", NULL, NULL, "evict no other model for it", FLAG_BOOL, AT(no_evict)},
        {"--pin", NULL, NULL, "never evict it, and let it not expire", FLAG_BOOL, AT(pin)},
        {"--keep-alive", NULL, "DURATION", "it goes after so long without a lease (30s, 5m, 2h)", FLAG_DURATION,
         AT(keep_alive_ms)},
        {"--drain-timeout", NULL, "DURATION", "what it replaces is unloaded by force after so long", FLAG_DURATION,
         AT(drain_timeout_ms)},
        {"--dry-run", NULL, NULL, "tell what would be loaded, whether it fits, and what would be evicted", FLAG_BOOL,
         AT(dry_run)},
        {0},
};
static const struct flag cat_flags[] = {
        {"--device", NULL, "DEVICE", "whose copy, where there are several", FLAG_DEVICE, 0},
        {0},
};
static const struct flag show_flags[] = {
        {"--device", NULL, "DEVICE", "whose tensors, where devices differ", FLAG_DEVICE, 0},
        {"--tensors", NULL, NULL, "every tensor too", FLAG_BOOL, AT(tensors)},
        {0},
};
static const struct flag top_flags[] = {
        {"--once", NULL, NULL, "print one frame and exit", FLAG_BOOL, AT(once)},
        {"--interval", NULL, "SECONDS", "between two frames (1)", FLAG_STR, AT(interval)},
        {0},
};
static const struct flag unload_flags[] = {
        {"--device", NULL, "DEVICE", "this device's copy alone", FLAG_DEVICE, 0},
        {"--drain", NULL, NULL, "refuse new attaches; free with the last lease", FLAG_BOOL, AT(drain)},
        {"--drain-timeout", NULL, "DURATION", "with --drain: as --force after so long", FLAG_DURATION,
         AT(drain_timeout_ms)},
        {"--force", NULL, NULL, "take it from those who hold it: they are told, their memory stays theirs", FLAG_BOOL,
         AT(force)},
        {0},
};

// clang-format off
const struct verb verbs[] = {
        {.name = "load", .args = "SOURCE", .min_args = 1, .max_args = 1, .run = verb_load, .flags = load_flags,
         .summary = "Load a model and wait until it is ready",
         .about = "SOURCE is a safetensors file, a folder of them, org/name[@rev] in the Hugging Face cache,\n"
                  "https://host/path, s3://bucket/prefix/ or hf://org/name[@rev].\n"
                  "An interrupt (Ctrl-C) leaves the load going; 'streamerctl cancel' ends it.\n"
                  "On several devices the files are read once; each device may fail on its own, which makes the\n"
                  "exit code 1. Ranks (model-rank-{rank}-part-{part}.safetensors) succeed or fail together.",
         .examples = "streamerctl load /models/llama-3-8b\n"
                     "streamerctl load /models/llama-3-8b --name chat --device 0\n"
                     "streamerctl load /models/llama-3-8b --device 0,1\n"
                     "streamerctl load /models/sharded --layout rank --device 0,1,2,3\n"
                     "streamerctl load meta-llama/Llama-3.1-8B --verify sha256\n"
                     "streamerctl load s3://models/llama-3-8b/\n"
                     "streamerctl load /models/llama-3-8b --dry-run"},
        {.name = "cancel", .args = "MODEL", .min_args = 1, .max_args = 1, .run = verb_cancel,
         .summary = "End a load",
         .examples = "streamerctl cancel llama-3-8b"},
        {.name = "set-priority", .args = "MODEL N", .min_args = 2, .max_args = 2, .run = verb_set_priority,
         .summary = "Change a model's priority, also while it loads",
         .about = "1 to 10000; 100 is usual. Loads that run side by side share the reader in the ratio of their\n"
                  "priorities.",
         .examples = "streamerctl set-priority llama-3-8b 500"},
        {.name = "list", .args = "", .run = verb_list,
         .summary = "List the models",
         .examples = "streamerctl list\n"
                     "streamerctl list -o wide\n"
                     "streamerctl list --json | jq -r '.models[].name'"},
        {.name = "show", .args = "MODEL", .min_args = 1, .max_args = 1, .run = verb_show, .flags = show_flags,
         .summary = "Show one model",
         .examples = "streamerctl show llama-3-8b\n"
                     "streamerctl show llama-3-8b --tensors -o wide"},
        {.name = "status", .args = "", .run = verb_status,
         .summary = "Show the daemon, its devices and loads",
         .examples = "streamerctl status\n"
                     "streamerctl status --json"},
        {.name = "ps", .args = "", .run = verb_ps,
         .summary = "List the leases: which process uses what",
         .examples = "streamerctl ps"},
        {.name = "top", .args = "", .run = verb_top, .flags = top_flags, .raw = true,
         .summary = "Watch devices, loads, models and leases",
         .about = "Keys: q ends, j and k (or arrows) scroll the models, s sorts them by name, size or leases.",
         .examples = "streamerctl top\n"
                     "streamerctl top --once"},
        {.name = "wait", .args = "MODEL", .min_args = 1, .max_args = 1, .run = verb_wait,
         .summary = "Wait until a model is ready",
         .about = "Exit code 3: there is no such model; 1: its load failed; 5: --timeout has passed.",
         .examples = "streamerctl wait llama-3-8b --timeout 600"},
        {.name = "verify", .args = "MODEL", .min_args = 1, .max_args = 1, .run = verb_verify,
         .summary = "Hash a resident model again and compare",
         .examples = "streamerctl verify llama-3-8b"},
        {.name = "unload", .args = "MODEL", .min_args = 1, .max_args = 1, .run = verb_unload, .flags = unload_flags,
         .summary = "Drop a model",
         .about = "A model that is in use stays (exit code 6), unless --drain or\n"
                  "--force is given. Memory that a process may have mapped is never freed under it: by force it is\n"
                  "in quarantine ('status', 'ps') until that process has detached or ended.",
         .examples = "streamerctl unload llama-3-8b\n"
                     "streamerctl unload llama-3-8b --drain"},
        {.name = "pin", .args = "MODEL", .min_args = 1, .max_args = 1, .run = verb_pin,
         .summary = "Never evict a model, and let it not expire",
         .about = "The pin is of the name, on all devices: another generation that comes to serve it is pinned, too.",
         .examples = "streamerctl pin llama-3-8b"},
        {.name = "unpin", .args = "MODEL", .min_args = 1, .max_args = 1, .run = verb_unpin,
         .summary = "Take the pin away",
         .about = "From all that goes by the name, on all devices.",
         .examples = "streamerctl unpin llama-3-8b"},
        {.name = "cat", .args = "MODEL TENSOR", .min_args = 2, .max_args = 2, .run = verb_cat, .raw = true, .flags = cat_flags,
         .summary = "Write a tensor's bytes",
         .examples = "streamerctl cat llama-3-8b model.norm.weight | xxd | head"},
        {.name = "events", .args = "[MODEL]", .max_args = 1, .run = verb_events,
         .summary = "Follow what happens: one JSON object a line",
         .examples = "streamerctl events | jq .\n"
                     "streamerctl events llama-3-8b"},
        {.name = "metrics", .args = "", .run = verb_metrics,
         .summary = "Print the daemon's metrics, as Prometheus reads them",
         .examples = "streamerctl metrics | grep device_free"},
        {.name = "reload", .args = "", .run = verb_reload,
         .summary = "Let the daemon read its settings again, as by SIGHUP",
         .about = "Limits, access, preload and the log's level are applied; other keys wait for a restart. Settings\n"
                  "that are wrong are refused as a whole.",
         .examples = "streamerctl reload"},
        {.name = "whoami", .args = "", .run = verb_whoami,
         .summary = "Show your role, what it limits, and what you hold",
         .examples = "streamerctl whoami"},
        {.name = "ping", .args = "", .run = verb_ping,
         .summary = "See whether the daemon answers",
         .examples = "streamerctl ping --timeout 1"},
        {.name = "version", .args = "", .run = verb_version,
         .summary = "Show the daemon's and streamerctl's version",
         .examples = "streamerctl version"},
        {.name = "doctor", .args = "", .run = verb_doctor, .offline = true,
         .summary = "Look for what is in the way, and try each device",
         .about = "Compares what the daemon has been granted with what this process meets, loads a small model\n"
                  "of the daemon's own on each device, attaches to it and reads it back. Each line is ok, warn or\n"
                  "fail, with what to change. Without a daemon this side alone is looked at.\n"
                  "Exit code 0: nothing failed; 1: a check did; 4: the daemon cannot be reached.",
         .examples = "streamerctl doctor\n"
                     "streamerctl doctor --json | jq '.checks[] | select(.result != \"ok\")'"},
        {.name = "help", .args = "[VERB]", .max_args = 1, .run = verb_help, .offline = true,
         .summary = "Show help",
         .examples = "streamerctl help load"},
        {.name = "complete", .args = "-- [WORD]...", .max_args = 4096, .run = verb_complete, .offline = true,
         .hidden = true,
         .summary = "Print what may stand next on a command line; for the shells' completion"},
        {0},
};
// clang-format on
