/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of verbs and flags. Parsing, help and completion follow it; tests compare the manual page with it.
 * Words of `args` and of a flag's `value` are in capitals and select what completion offers: MODEL, SOURCE, TENSOR,
 * VERB, DEVICE, PATH. The last word of `args` stands for all further arguments.
 */
#include "client/streamerctl/ctl.h"

#define AT(field) .offset = offsetof(struct ctl, field)
#define MANY 4096
#define FLAGS(...)                                                                                                     \
        (const struct flag[])                                                                                          \
        {                                                                                                              \
                __VA_ARGS__,                                                                                           \
                {                                                                                                      \
                        0                                                                                              \
                }                                                                                                      \
        }

const struct flag global_flags[] = {
        {"--socket", "PATH", "the daemon's socket ($STREAMERD_SOCKET; else the system's, else your own)", FLAG_STR,
         AT(socket)},
        {"--output", "FORMAT", "table, wide or json", FLAG_FORMAT, AT(format), .alias = "-o"},
        {"--json", NULL, "the same as -o json", FLAG_JSON, AT(format)},
        {"--timeout", "DURATION", "for one reply (10s); for load and wait: until the model is ready", FLAG_TIMEOUT,
         AT(timeout_ms)},
        {"--no-progress", NULL, "print no progress", FLAG_BOOL, AT(no_progress)},
        {"--quiet", NULL, "print names only, and no progress", FLAG_BOOL, AT(quiet), .alias = "-q"},
        {"--help", NULL, "print this help, or the verb's", FLAG_BOOL, AT(help), .alias = "-h"},
        {"--version", NULL, "print streamerctl's version", FLAG_BOOL, AT(version), .alias = "-V"},
        {0},
};

// clang-format off
const struct verb verbs[] = {
        {.name = "load", .args = "SOURCE...", .min_args = 1, .max_args = MANY, .run = verb_load,
         .flags = FLAGS(
                 {"--name", "NAME", "the model's name (default: from the source, and unique)", FLAG_STR, AT(name)},
                 {"--device", "DEVICE", "host, cuda:N or N; several (0,1, or repeated) for replicas",
                  FLAG_DEVICE, AT(devices)},
                 {"--layout", "LAYOUT", "replica, or rank: rank r on the r-th device", FLAG_STR, AT(layout)},
                 {"--pattern", "PATTERN", "names of the ranks' files, with {rank} and {part}", FLAG_STR, AT(pattern)},
                 {"--detach", NULL, "do not wait: print the model's name", FLAG_BOOL, AT(detach)},
                 {"--queue", NULL, "if memory is insufficient, wait for it instead of failing", FLAG_BOOL, AT(queue)},
                 {"--wait", NULL, "the same as --queue", FLAG_BOOL, AT(queue), .hidden = true},
                 {"--no-evict", NULL, "evict no other model", FLAG_BOOL, AT(no_evict)},
                 {"--pin", NULL, "never evict or expire the model", FLAG_BOOL, AT(pin)},
                 {"--keep-alive", "DURATION", "unload it after so long without a lease (30s, 5m, 2h)",
                  FLAG_DURATION, AT(keep_alive_ms)},
                 {"--verify", "DIGESTS", "none, or sha256: compare the files with published digests",
                  FLAG_STR, AT(verify)},
                 {"--priority", "N", "1 to 10000: share of the reader among concurrent loads (100)",
                  FLAG_PRIORITY, AT(priority)},
                 {"--drain-timeout", "DURATION", "unload the generation that it replaces by force after so long",
                  FLAG_DURATION, AT(drain_timeout_ms)},
                 {"--dry-run", NULL, "print what would be loaded and evicted, whether it fits; its exit code",
                  FLAG_BOOL, AT(dry_run)}),
         .waits = true,
         .summary = "Load models and wait until they are ready",
         .about = "SOURCE is a safetensors file, a directory of them, org/name[@rev] in the Hugging Face cache,\n"
                  "https://host/path, s3://bucket/prefix/, gs://bucket/prefix/, az://container/path/ or\n"
                  "hf://org/name[@rev]. A path that exists takes precedence over a name in the cache. Without\n"
                  "--name a model gets the last component of its source, with leading ones where another source\n"
                  "has that name ('b/model'); only --name replaces a model.\n"
                  "Ctrl-C and --timeout (exit code 5) end the wait; the load continues. 'streamerctl cancel'\n"
                  "cancels it. A daemon that is being started is waited for, up to a second.\n"
                  "With --json progress is one object per line on standard error, once a second.\n"
                  "On several devices the files are read once, and each device may fail on its own: exit code 1.\n"
                  "Ranks (model-rank-{rank}-part-{part}.safetensors) succeed or fail together.",
         .examples = "streamerctl load /models/llama-3-8b\n"
                     "streamerctl load /models/llama-3-8b --name chat --device 0\n"
                     "streamerctl load /models/llama-3-8b /models/qwen-7b --queue --timeout 10m\n"
                     "streamerctl load /models/llama-3-8b --device 0,1\n"
                     "streamerctl load /models/sharded --layout rank --device 0,1,2,3\n"
                     "streamerctl load meta-llama/Llama-3.1-8B --verify sha256\n"
                     "streamerctl load s3://models/llama-3-8b/\n"
                     "streamerctl load /models/llama-3-8b --dry-run"},
        {.name = "cancel", .args = "MODEL", .min_args = 1, .max_args = 1, .each = each_cancel,
         .summary = "Cancel a load",
         .examples = "streamerctl cancel llama-3-8b"},
        {.name = "list", .alias = "ls", .args = "", .run = verb_list,
         .flags = FLAGS(
                 {"--watch", NULL, "print the list again when a model changes", FLAG_BOOL, AT(watch)}),
         .summary = "List the models",
         .about = "STATE is\n"
                  "  queued    its load waits for memory, or has not begun\n"
                  "  loading   it is being read; clients may attach and use the tensors that have arrived\n"
                  "  ready     all tensors are resident and checked\n"
                  "  draining  it has been unloaded or replaced, and frees its memory with its last lease\n"
                  "  cached    it was evicted from a GPU and has a copy in host memory, from which a load restores it\n"
                  "  failed    its load failed; -o wide and 'show' have why; the next load or 'unload' removes it\n"
                  "A name has a row for each of its generations: one may serve while another loads or after it\n"
                  "failed. GEN (-o wide) counts the loads of the daemon, not of the name.",
         .examples = "streamerctl list\n"
                     "streamerctl list --watch\n"
                     "streamerctl list -o wide\n"
                     "streamerctl list -q\n"
                     "streamerctl list --json | jq -r '.models[].name'"},
        {.name = "show", .args = "MODEL...", .min_args = 1, .max_args = MANY, .each = each_show,
         .flags = FLAGS(
                 {"--device", "DEVICE", "list this device's tensors", FLAG_DEVICE, AT(devices)},
                 {"--tensors", NULL, "list every tensor", FLAG_BOOL, AT(tensors)}),
         .summary = "Show models",
         .examples = "streamerctl show llama-3-8b\n"
                     "streamerctl show llama-3-8b --tensors -o wide"},
        {.name = "explain", .args = "MODEL...", .min_args = 1, .max_args = MANY, .each = each_explain,
         .summary = "Show what has become of models that are not resident any more",
         .about = "Unloaded, replaced, expired, evicted, failed or damaged: when, by whom or why, the latest first. The\n"
                  "daemon remembers the last 128 ends of all models, and none from before its start.",
         .examples = "streamerctl explain llama-3-8b"},
        {.name = "diff", .args = "MODEL SOURCE", .min_args = 2, .max_args = 2, .run = verb_diff,
         .summary = "Show what a load of a source would change in a model",
         .about = "Files that differ from those that the model was loaded from (device, inode, size, times; of a\n"
                  "server: size and ETag), and tensors that are added, removed, or have another dtype or shape.\n"
                  "Only headers are read: the other tensors of files that differ may differ, too. Requires the\n"
                  "role 'load'.",
         .examples = "streamerctl diff llama-3-8b /models/llama-3-8b\n"
                     "streamerctl diff llama-3-8b s3://models/llama-3-8b-v2/"},
        {.name = "status", .args = "", .print = print_status,
         .summary = "Show the daemon, its devices and loads",
         .examples = "streamerctl status\n"
                     "streamerctl status --json"},
        {.name = "ps", .args = "[MODEL|LEASE]...", .max_args = MANY, .run = verb_ps,
         .summary = "List the leases and their processes",
         .about = "Without arguments: all leases; otherwise the leases with the given models and ids.",
         .examples = "streamerctl ps\n"
                     "streamerctl ps llama-3-8b\n"
                     "streamerctl ps 17"},
        {.name = "top", .args = "", .run = verb_top, .raw = true,
         .flags = FLAGS(
                 {"--once", NULL, "print one frame and exit", FLAG_BOOL, AT(once)},
                 {"--interval", "DURATION", "between two frames (1s)", FLAG_INTERVAL, AT(interval_ms)}),
         .summary = "Watch devices, loads, models and leases",
         .about = "Keys: q quits, j and k (or arrows) scroll the models, s sorts them by name, size or leases.",
         .examples = "streamerctl top\n"
                     "streamerctl top --once"},
        {.name = "wait", .args = "MODEL...", .min_args = 1, .max_args = MANY, .run = verb_wait,
         .waits = true,
         .flags = FLAGS(
                 {"--any", NULL, "until one of the models is in the state", FLAG_BOOL, AT(any)},
                 {"--for", "STATE", "ready (the default), or unloaded: no memory is left", FLAG_STR, AT(until)}),
         .summary = "Wait until models are ready or unloaded",
         .about = "Until all are; with --any the first one is printed. A name without a model, or whose load failed,\n"
                  "counts as unloaded; one that drains does not.\n"
                  "Exit code 3: no such model; 1: its load failed (with --any: all failed); 5: --timeout has passed.",
         .examples = "streamerctl wait llama-3-8b --timeout 10m\n"
                     "streamerctl wait --any llama-3-8b qwen-7b\n"
                     "streamerctl wait --for=unloaded llama-3-8b"},
        {.name = "verify", .args = "MODEL...", .min_args = 1, .max_args = MANY, .each = each_verify,
         .summary = "Hash resident models again and compare the digests",
         .examples = "streamerctl verify llama-3-8b"},
        {.name = "unload", .alias = "rm", .args = "[MODEL]...", .max_args = MANY, .run = verb_unload,
         .flags = FLAGS(
                 {"--all", NULL, "unload all models", FLAG_BOOL, AT(all)},
                 {"--idle", "DURATION", "only models that have had no lease for so long", FLAG_DURATION, AT(idle_ms)},
                 {"--dry-run", NULL, "print what would be unloaded", FLAG_BOOL, AT(dry_run)},
                 {"--device", "DEVICE", "unload this device's copy only", FLAG_DEVICE, AT(devices)},
                 {"--drain", NULL, "refuse new leases; free the memory with the last lease", FLAG_BOOL, AT(drain)},
                 {"--drain-timeout", "DURATION", "with --drain: as --force after so long",
                  FLAG_DURATION, AT(drain_timeout_ms)},
                 {"--force", NULL, "revoke the leases; mapped memory stays valid until it is detached",
                  FLAG_BOOL, AT(force)}),
         .summary = "Unload models",
         .about = "A model that is leased stays (exit code 6), unless --drain or --force is given. Memory that a\n"
                  "process may have mapped is never freed: after --force it is quarantined ('status', 'ps') until\n"
                  "the process has detached or exited.\n"
                  "MODEL may be a pattern with *, ? and [...], as of a shell, which also match '/'.",
         .examples = "streamerctl unload llama-3-8b\n"
                     "streamerctl unload 'org/*' --idle 1h --dry-run\n"
                     "streamerctl unload --all --drain\n"
                     "streamerctl unload llama-3-8b --drain"},
        {.name = "pin", .args = "MODEL...", .min_args = 1, .max_args = MANY, .each = each_pin,
         .summary = "Never evict or expire models",
         .about = "The pin belongs to the name, on all devices: it applies to later generations, too.",
         .examples = "streamerctl pin llama-3-8b"},
        {.name = "unpin", .args = "MODEL...", .min_args = 1, .max_args = MANY, .each = each_unpin,
         .summary = "Remove the pin of models",
         .about = "On all devices, and from all generations of the name. Another name of the model may still pin it.",
         .examples = "streamerctl unpin llama-3-8b"},
        {.name = "keep-alive", .args = "MODEL DURATION", .min_args = 2, .max_args = 2, .run = verb_keep_alive,
         .summary = "Unload a model after so long without a lease",
         .about = "Counted from the last lease, or from now if it has none. DURATION is 30s, 5m, 2h, a number of\n"
                  "seconds, or 'default' for the daemon's residency.keep_alive. A pinned model does not expire.",
         .examples = "streamerctl keep-alive llama-3-8b 30m"},
        {.name = "set-priority", .args = "MODEL N", .min_args = 2, .max_args = 2, .run = verb_set_priority,
         .summary = "Set a model's priority, also while it loads",
         .about = "1 to 10000; the default is 100. Concurrent loads share the reader in proportion to their\n"
                  "priorities.",
         .examples = "streamerctl set-priority llama-3-8b 500"},
        {.name = "run", .args = "MODEL -- COMMAND", .min_args = 2, .max_args = MANY, .run = verb_run,
         .flags = FLAGS(
                 {"--device", "DEVICE", "lease this device's copy", FLAG_DEVICE, AT(devices)}),
         .raw = true,
         .summary = "Run a command while holding a lease",
         .about = "Waits until the model is ready and runs the command, with its arguments: until it has exited, the\n"
                  "model is neither evicted nor unloaded. The command finds STREAMER_MODEL, STREAMER_GENERATION and\n"
                  "STREAMER_DIGEST in its environment. The exit code is the command's; 128 + N if signal N ended it;\n"
                  "127 if it was not found.",
         .examples = "streamerctl run llama-3-8b -- ./serve --port 8000"},
        {.name = "cat", .args = "MODEL TENSOR", .min_args = 2, .max_args = 2, .run = verb_cat, .raw = true,
         .flags = FLAGS(
                 {"--device", "DEVICE", "read this device's copy", FLAG_DEVICE, AT(devices)}),
         .summary = "Write a tensor's bytes to standard output",
         .about = "A model that is loading or being published is waited for, for --timeout; a wait of more than a\n"
                  "second is said on standard error.",
         .examples = "streamerctl cat llama-3-8b model.norm.weight | xxd | head"},
        {.name = "export", .args = "MODEL PATH", .min_args = 2, .max_args = 2, .run = verb_export,
         .flags = FLAGS(
                 {"--device", "DEVICE", "read this device's copy", FLAG_DEVICE, AT(devices)}),
         .summary = "Write a resident model as a safetensors file",
         .about = "One file with all tensors and the metadata, from memory: the source is not read. A file that PATH\n"
                  "names is replaced once the new one is whole and on disk, and keeps its permissions. Of a published\n"
                  "model the tensors of its table are written, each contiguous, and its attributes as metadata\n"
                  "streamerd.attribute.NAME. What was decrypted is written as plain text. A model that is loading or\n"
                  "being published is waited for, for --timeout; a wait of more than a second is said. Requires the\n"
                  "role 'attach'.",
         .examples = "streamerctl export policy policy.safetensors\n"
                     "streamerctl export llama-3-8b /backup/llama-3-8b.safetensors --json"},
        {.name = "fetch", .args = "SOURCE [FILE]...", .min_args = 1, .max_args = MANY, .run = verb_fetch,
         .flags = FLAGS(
                 {"--directory", "PATH", "the directory to write them into (the current one)", FLAG_STR, AT(directory)},
                 {"--list", NULL, "only list the files that the source has", FLAG_BOOL, AT(list)}),
         .summary = "Copy small files beside the weights of a source, such as config.json",
         .about = "The daemon reads them with its credentials and below its roots; each may have 64 MiB. Without a\n"
                  "FILE all that the source lists are copied: files that are not hidden and hold no weights. An\n"
                  "https:// source lists nothing; name its files. A file that is not complete after http.patience +\n"
                  "http.tries x http.stall of the configuration (3 minutes) ends with timeout. A file that is replaced\n"
                  "keeps its permissions. Requires the role 'load'.",
         .examples = "streamerctl fetch s3://models/llama-3-8b/ --directory llama-3-8b\n"
                     "streamerctl fetch hf://meta-llama/Llama-3.1-8B config.json tokenizer.json\n"
                     "streamerctl fetch /models/llama-3-8b --list"},
        {.name = "cache", .args = "ACTION [ENTRY]", .min_args = 1, .max_args = 2, .run = verb_cache,
         .summary = "List, show, remove or verify what the daemon's disk cache has",
         .about = "ACTION is list, show, remove or verify. ENTRY is an id or the beginning of one, or the beginning of\n"
                  "names: all that begin so. Without it list and verify are about all entries. show has the path of\n"
                  "the bytes, which are as the source has them. verify compares all bytes with the digests of the\n"
                  "load that stored them, and removes what is damaged: exit code 1.\n"
                  "Requires the role 'load'; remove the role 'admin'.",
         .examples = "streamerctl cache list\n"
                     "streamerctl cache list s3://models/llama-3-8b/ -o wide\n"
                     "streamerctl cache show 0b5d7c\n"
                     "streamerctl cache remove s3://models/llama-3-8b/\n"
                     "streamerctl cache verify --timeout 30m"},
        {.name = "events", .args = "[MODEL]", .max_args = 1, .run = verb_events,
         .summary = "Follow changes of models: one JSON object per line",
         .examples = "streamerctl events | jq .\n"
                     "streamerctl events llama-3-8b"},
        {.name = "metrics", .args = "", .print = print_metrics,
         .summary = "Print the daemon's metrics in the Prometheus format",
         .examples = "streamerctl metrics | grep device_free"},
        {.name = "config", .args = "", .print = print_config,
         .summary = "Show the effective configuration and the origin of each value",
         .about = "The origin is a flag, an environment variable, the file, or the default. Secrets are redacted.",
         .examples = "streamerctl config\n"
                     "streamerctl config --json | jq '.settings[] | select(.origin != \"default\")'"},
        {.name = "reload", .args = "", .print = print_reload,
         .summary = "Reload the daemon's configuration, as SIGHUP does",
         .about = "Limits, access, preload, roots and the log's level are applied; other keys require a restart. An\n"
                  "invalid configuration is refused as a whole.",
         .examples = "streamerctl reload"},
        {.name = "shutdown", .args = "", .run = verb_shutdown, .own = true,
         .flags = FLAGS(
                 {"--drain", NULL, "begin no load and no lease; end with the last lease", FLAG_BOOL, AT(drain)}),
         .summary = "End your own daemon",
         .about = "The daemon that the Python package starts, or one that --socket or $STREAMERD_SOCKET names; the\n"
                  "system's daemon is a service: 'systemctl stop streamerd'. Memory that processes have mapped\n"
                  "stays valid. Without --drain, waits for its end: for --timeout, or 15 seconds.\n"
                  "Requires the role 'admin', which the daemon's own user has.",
         .examples = "streamerctl shutdown\n"
                     "streamerctl shutdown --drain"},
        {.name = "whoami", .args = "", .print = print_whoami,
         .summary = "Show your role, limits and usage",
         .examples = "streamerctl whoami"},
        {.name = "ping", .args = "", .print = print_ping,
         .summary = "Check that the daemon answers",
         .examples = "streamerctl ping --timeout 1"},
        {.name = "version", .args = "", .run = verb_version, .offline = true,
         .summary = "Show the versions of the daemon and of streamerctl",
         .about = "Without a daemon: of streamerctl, and then the error.",
         .examples = "streamerctl version"},
        {.name = "doctor", .args = "", .run = verb_doctor, .offline = true,
         .summary = "Find misconfigurations, and test each device",
         .about = "Compares the daemon's limits and capabilities with this process, loads a small built-in model\n"
                  "on each device, attaches to it and reads it back. Each line is ok, warn or\n"
                  "fail, with advice. Without a daemon it checks only this side.\n"
                  "Exit code 0: nothing failed; 1: a check failed; 4: the daemon cannot be reached;\n"
                  "8: permission to its socket is denied.",
         .examples = "streamerctl doctor\n"
                     "streamerctl doctor --json | jq '.checks[] | select(.result != \"ok\")'"},
        {.name = "help", .args = "[VERB]", .max_args = 1, .run = verb_help, .offline = true,
         .summary = "Show help",
         .examples = "streamerctl help load"},
        {.name = "complete", .args = "-- [WORD]...", .max_args = MANY, .run = verb_complete, .offline = true,
         .hidden = true,
         .summary = "Print the candidates for the last word of a command line; called by shells"},
        {0},
};
// clang-format on
