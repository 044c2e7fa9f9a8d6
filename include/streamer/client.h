/* SPDX-License-Identifier: Apache-2.0
 *
 * libstreamer-client: load model weights into streamerd and attach to them. The caller gets the memory that
 * holds the weights, mapped into its own process, and a table of the tensors in it.
 *
 * Errors
 *   A function that can fail returns int: 0, or a negative STREAMER_E*. streamer_strerror() names the code;
 *   streamer_last_error() describes the last failure of the calling thread, and streamer_error_copy() that of a
 *   client, for callers that change threads between calls. A required pointer that is NULL,
 *   a name that is empty and a struct_size of 0 are STREAMER_EINVAL, and the text names the argument. A
 *   function that returns a count, a pointer or a number returns 0, NULL, or what its comment says.
 *
 * Structs
 *   Every struct begins with `struct_size`, the size that the caller was compiled with. Initialise each with
 *   its macro, such as STREAMER_TENSOR_INIT; all other members are then 0. Languages without these macros set
 *   all bytes to 0 and then struct_size, which is a size_t, to the struct's size (docs/bindings.md). Later releases
 * append members. The library reads and writes no more than struct_size bytes. In a struct that it fills, members that
 * this library does not know are 0; in a struct of options, members that it does not know must be 0. A NULL pointer to
 * options means all defaults.
 *
 * Ownership
 *   Each handle is released by its own function, once, and in any order: a lease keeps what it needs of its
 *   client, and stays readable after streamer_close() and after the daemon has exited. Memory that a function
 *   hands to the caller is released with streamer_free(). Everything else is borrowed from the named handle.
 *
 * Threads
 *   Any thread may call any function on any handle: calls on one client are serialised by a lock. A handle
 *   must not be released while another thread uses it. The library starts no thread, installs no signal
 *   handler, prints nothing, and has no global state except the GPU segments that are open, as CUDA opens each
 *   once per process.
 *
 * fork()
 *   Handles belong to the process that made them. In a forked child every function that takes one returns
 *   STREAMER_EFORK (0 or NULL where it returns no code) and sends nothing; the functions that release a handle
 *   release the child's memory only. Host memory that was mapped stays readable in the child.
 *
 * Reconnection
 *   When the daemon restarts, the next call reconnects, waiting up to 3 s, and claims the leases again. Host
 *   memory, and GPU memory that was shared by descriptor, stays mapped and readable throughout. A lease that
 *   the daemon no longer holds is STREAMER_ELOST; streamer_lease_check() reports it. A call in progress when
 *   the connection is lost returns STREAMER_EUNREACHABLE and is not repeated, since it may have had its effect. Only
 *   streamer_connect() tries again, for up to 3 s and within its time limit, where the daemon ends the connection
 *   before it has answered; where none serves it fails at once.
 *
 * Versions
 *   The daemon lists the requests that it supports. A call that an older daemon does not support returns
 *   STREAMER_EUNSUPPORTED without sending anything, and the text says which side is older.
 *
 * Strings are UTF-8 and NUL-terminated. Sizes and offsets are in bytes. Timeouts are in milliseconds. Where the daemon
 * ends a wait (streamer_attach, streamer_publish_find), its reason has a second more to arrive.
 */
#ifndef STREAMER_CLIENT_H
#define STREAMER_CLIENT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define STREAMER_API __attribute__((visibility("default")))
#else
#define STREAMER_API
#endif

/* Initialises a variable of `type`: all members 0 but struct_size. */
#ifdef __cplusplus
#define STREAMER_INIT(type)                                                                                            \
        ([]() {                                                                                                        \
                type initialised{};                                                                                    \
                initialised.struct_size = sizeof(type);                                                                \
                return initialised;                                                                                    \
        }())
#else
#define STREAMER_INIT(type)                                                                                            \
        {                                                                                                              \
                .struct_size = sizeof(type)                                                                            \
        }
#endif

/* Outcomes. A value is never reused. */
enum {
        STREAMER_OK = 0,
        STREAMER_EFAILED = -1,      /* the daemon could not do it: damaged file, I/O error */
        STREAMER_EINVAL = -2,       /* an invalid argument or request */
        STREAMER_ENOENT = -3,       /* no such model, tensor or source */
        STREAMER_EUNREACHABLE = -4, /* no daemon listens on the socket, or the connection was lost */
        STREAMER_ETIMEOUT = -5,     /* not done in the given time; the daemon continues */
        STREAMER_EBUSY = -6,        /* the model has leases, or the tensor has not arrived */
        STREAMER_ENOMEM = -7,       /* insufficient memory: the device's budget, or this process */
        STREAMER_EPERM = -8,        /* permission denied */
        STREAMER_EEND = -9,         /* after the last tensor */
        STREAMER_EFORK = -10,       /* the handle belongs to the parent process */
        STREAMER_ELOST = -11,       /* after a lost connection the lease, or the watch of the load, does not exist */
        STREAMER_EPROTO = -12,      /* the daemon and the library have no protocol in common, or a message is invalid */
        STREAMER_ECANCELED = -13,   /* the load was cancelled */
        STREAMER_EDIGEST = -14,     /* the model has another digest than the requested one */
        STREAMER_ELIMIT = -15,      /* a limit of the daemon: connections, leases, queued loads */
        STREAMER_EUNSUPPORTED = -16, /* the daemon, library, device or kernel does not support it */
        STREAMER_ECORRUPT = -17,     /* the table of tensors is inconsistent */
        STREAMER_EOS = -18,          /* a system call of this process failed */
        STREAMER_EREVOKED = -19      /* the model was unloaded by force; its memory stays mapped until the detach */
};
#define STREAMER_E_END STREAMER_EEND
#define STREAMER_E_TIMEOUT STREAMER_ETIMEOUT

typedef struct streamer_client streamer_client;
typedef struct streamer_op streamer_op;
typedef struct streamer_lease streamer_lease;
typedef struct streamer_model_list streamer_model_list;

/* ---- library ---------------------------------------------------------------------------------- */

/* The version of this interface. It grows with each release that adds to it; nothing is removed within one
 * SONAME. */
#define STREAMER_ABI_VERSION 1u

/* The release that this header belongs to. */
#define STREAMER_VERSION_MAJOR 0
#define STREAMER_VERSION_MINOR 1
#define STREAMER_VERSION_PATCH 0
#define STREAMER_VERSION "0.1.0"

/* STREAMER_ABI_VERSION of the library that was linked at run time. */
STREAMER_API uint32_t streamer_abi_version(void);

/* STREAMER_VERSION of the library that was linked at run time. */
STREAMER_API const char *streamer_version(void);

/* A constant text for an outcome; never NULL. */
STREAMER_API const char *streamer_strerror(int err);

/* The code as a word, such as "not-found": as on the wire and in streamerctl's JSON (docs/errors.md). Constant;
 * never NULL. */
STREAMER_API const char *streamer_error_name(int err);

/* The exit code that a command should return for an outcome: 0 to 8, as streamerctl's (docs/errors.md). */
STREAMER_API int streamer_exit_code(int err);

/* Releases memory that the library handed to the caller; accepts NULL. */
STREAMER_API void streamer_free(void *memory);

/* A copy of a text for a terminal or a log, in which each byte of what is not printable is written as \xHH: control
 * characters, what breaks lines or turns the direction of text, and what is not UTF-8. Names of models and tensors come
 * from other users. NULL stands for "". The caller owns it (streamer_free); NULL: no memory. */
STREAMER_API char *streamer_printable(const char *text);

/* The one of n names that differs least from `name`, the first of several; NULL if none is similar. For messages. */
STREAMER_API const char *streamer_nearest(const char *name, const char *const *names, size_t n);

/* Element types. A number is never reused; a daemon may use numbers that this library does not know. */
enum streamer_dtype {
        STREAMER_DTYPE_UNKNOWN = 0,
        STREAMER_DTYPE_BOOL = 1,
        STREAMER_DTYPE_U8 = 2,
        STREAMER_DTYPE_I8 = 3,
        STREAMER_DTYPE_U16 = 4,
        STREAMER_DTYPE_I16 = 5,
        STREAMER_DTYPE_U32 = 6,
        STREAMER_DTYPE_I32 = 7,
        STREAMER_DTYPE_U64 = 8,
        STREAMER_DTYPE_I64 = 9,
        STREAMER_DTYPE_F16 = 10,
        STREAMER_DTYPE_BF16 = 11,
        STREAMER_DTYPE_F32 = 12,
        STREAMER_DTYPE_F64 = 13,
        STREAMER_DTYPE_C64 = 14,
        STREAMER_DTYPE_F8_E4M3 = 15,
        STREAMER_DTYPE_F8_E5M2 = 16,
        STREAMER_DTYPE_F8_E8M0 = 17,
        STREAMER_DTYPE_F8_E4M3FNUZ = 18,
        STREAMER_DTYPE_F8_E5M2FNUZ = 19,
        STREAMER_DTYPE_F6_E2M3 = 20,
        STREAMER_DTYPE_F6_E3M2 = 21,
        STREAMER_DTYPE_F4 = 22
};
typedef enum streamer_dtype streamer_dtype;

/* The number of bits of one element; 0 if unknown. */
STREAMER_API unsigned streamer_dtype_bits(streamer_dtype dtype);

/* The name of an element type in safetensors files, such as "BF16"; NULL if unknown. */
STREAMER_API const char *streamer_dtype_name(streamer_dtype dtype);

/* ---- connection -------------------------------------------------------------------------------- */

typedef struct streamer_connect_opts {
        size_t struct_size;
        const char *socket;     /* NULL: by the rule below */
        int timeout_ms;         /* for the connection and for each reply; 0: 10 s; -1: no limit */
        unsigned flags;         /* STREAMER_CONNECT_* */
        int connect_timeout_ms; /* for the connection alone; 0: timeout_ms; -1: no limit */
        char *error;            /* NULL, or where the text of a failure is stored; "" if there is none */
        size_t error_size;      /* its size, with the NUL at the end */
} streamer_connect_opts;
#define STREAMER_CONNECT_OPTS_INIT STREAMER_INIT(streamer_connect_opts)

#define STREAMER_CONNECT_OWN 1u /* not to the system's daemon: to $STREAMERD_SOCKET or the user's own */
/* One round trip less: the version and the rights are checked with the first request, in one message. Where the daemon
 * refuses the client, it is the first call that fails, with the error that streamer_connect() would have, and all later
 * ones do. No effect where the system's daemon and the user's own both have a socket. */
#define STREAMER_CONNECT_LAZY 2u

/* Connects to the daemon. The caller owns *client (streamer_close). Which daemon, where opts names no socket:
 *   $STREAMERD_SOCKET, if it is set;
 *   else the system's, /run/streamerd/streamerd.sock, unless none serves there or it refuses this user;
 *   else the user's own, such as the Python package starts: $XDG_RUNTIME_DIR/streamerd/streamerd.sock or
 *   /tmp/streamerd-UID/streamerd.sock, in a folder of this user that nobody else can enter (mode 0700).
 * streamer_socket() returns which it is. */
STREAMER_API int streamer_connect(const streamer_connect_opts *opts, streamer_client **client);

/* How a client found its socket. */
enum {
        STREAMER_SOCKET_GIVEN = 1,       /* by the caller */
        STREAMER_SOCKET_ENVIRONMENT = 2, /* $STREAMERD_SOCKET */
        STREAMER_SOCKET_SYSTEM = 3,      /* the system's daemon */
        STREAMER_SOCKET_USER = 4         /* the user's own daemon */
};

typedef struct streamer_socket_info {
        size_t struct_size;
        const char *path;    /* borrowed from the client, as the others */
        const char *skipped; /* why the system's daemon was not used although its socket exists; else "" */
        int rule;            /* STREAMER_SOCKET_* */
} streamer_socket_info;
#define STREAMER_SOCKET_INFO_INIT STREAMER_INIT(streamer_socket_info)

STREAMER_API int streamer_socket(const streamer_client *client, streamer_socket_info *info);

/* The socket on which a daemon of the user's own is to listen if one is started. Its folder need not exist. The caller
 * owns *path (streamer_free). */
STREAMER_API int streamer_user_socket(char **path);

/* Closes the connection; accepts NULL. The daemon frees the leases that were not detached when this process
 * exits; their memory stays mapped until streamer_detach(). */
STREAMER_API void streamer_close(streamer_client *client);

/* The text of the calling thread's last failure on this client; "" if none. NULL: of its last failed call
 * that had no client, such as streamer_connect(). Valid until the thread's next call. */
STREAMER_API const char *streamer_last_error(const streamer_client *client);

/* Copies the text of the client's last failure in any thread, or as much of it as fits with a NUL at the end; "" if
 * none. It is the text of a call if no other thread has called on this client since. streamer_connect() has
 * opts->error. */
STREAMER_API void streamer_error_copy(const streamer_client *client, char *text, size_t size);

/* A descriptor for poll() or epoll, the same for the client's life, also over reconnections; or a negative
 * STREAMER_E*. Borrowed. Wait for input only. It is readable while something is pending: an event that
 * streamer_event_next() has not returned, or, since the last streamer_process(), an operation that ended,
 * tensors that arrived, a lease that changed, or the loss of the connection. Other calls may read the socket in
 * between: they lose nothing. It may be readable for an instant for a message that is none of these; then
 * streamer_process() returns 0. */
STREAMER_API int streamer_fd(streamer_client *client);

/* Reads what the daemon sent and never blocks. 1: something is pending, as above. Read the events
 * (streamer_event_next) and look at the operations and leases (streamer_op_wait, streamer_op_lease and
 * streamer_tensor_next with a timeout of 0, as long as they return something), then call it again. 0: nothing is
 * pending, and the descriptor is not readable. STREAMER_EUNREACHABLE: the connection was lost, which has been
 * reported by a 1 before; the descriptor is not readable until another call reconnects. */
STREAMER_API int streamer_process(streamer_client *client);

/* ---- models ------------------------------------------------------------------------------------ */

typedef struct streamer_model {
        size_t struct_size;
        const char *name;
        const char *source;
        const char *state;  /* "queued", "loading", "ready", "draining", "cached" (in the host cache), "failed" */
        const char *digest; /* 32 hexadecimal digits; "" until ready */
        const char *error;  /* why the load failed; "" if it did not */
        uint64_t generation;
        uint64_t bytes;   /* of tensor data */
        uint64_t tensors; /* number of tensors */
        uint64_t leases;
        uint64_t load_ns; /* duration of the load; 0 until ready */
        size_t n_devices; /* streamer_model_list_device_get */
        int pinned;       /* 1 or 0 */
} streamer_model;
#define STREAMER_MODEL_INIT STREAMER_INIT(streamer_model)

/* A model on one of its devices. */
typedef struct streamer_model_device {
        size_t struct_size;
        const char *device; /* "host", "cuda:0" */
        const char *state;
        const char *digest;    /* differs between devices if the model is split by rank */
        const char *page_kind; /* kind of pages that the memory consists of */
        const char *error;     /* why the load failed on this device; "" if it did not */
        uint64_t bytes;        /* charged to the device's budget */
        uint64_t leases;
        int64_t rank; /* -1: the model is not split by rank */
        int pinned;   /* 1 or 0 */
} streamer_model_device;
#define STREAMER_MODEL_DEVICE_INIT STREAMER_INIT(streamer_model_device)

/* Lists the models, sorted by name. The caller owns *list (streamer_model_list_free). */
STREAMER_API int streamer_list(streamer_client *client, streamer_model_list **list);
STREAMER_API size_t streamer_model_list_count(const streamer_model_list *list);

/* Entry i, or its device j: STREAMER_ENOENT after the last. The strings are borrowed from the list. */
STREAMER_API int streamer_model_list_get(const streamer_model_list *list, size_t i, streamer_model *model);
STREAMER_API int streamer_model_list_device_get(const streamer_model_list *list, size_t i, size_t j,
                                                streamer_model_device *device);
STREAMER_API void streamer_model_list_free(streamer_model_list *list);

#define STREAMER_LOAD_DETACH 1u   /* report no progress: streamer_op_wait() is not possible */
#define STREAMER_LOAD_WAIT 2u     /* if memory is insufficient now, wait for it instead of failing */
#define STREAMER_LOAD_NO_EVICT 4u /* evict no other model */
#define STREAMER_LOAD_PIN 8u      /* never evict the model, and do not let it expire */

typedef struct streamer_load_opts {
        size_t struct_size;
        const char
                *source;  /* required: path, file://, org/name[@rev] in the HF cache, or a URL: https, s3, gs, az, hf */
        const char *name; /* NULL: the daemon chooses one that no other source has: streamer_op_model() */
        const char *const *devices; /* NULL: the daemon's only device; several: the files are read once */
        size_t n_devices;
        const char *verify;        /* NULL or "none", or "sha256" */
        unsigned flags;            /* STREAMER_LOAD_* */
        unsigned priority;         /* 1 to 10000: its share where loads run side by side; 0: the daemon's default */
        const char *layout;        /* NULL or "replica": the same on each device; "rank": rank r on the r-th device */
        const char *pattern;       /* of the ranks' files; NULL: model-rank-{rank}-part-{part}.safetensors */
        uint64_t keep_alive_ms;    /* unload the model after so long without a lease; 0: as the name has it */
        uint64_t drain_timeout_ms; /* unload the generation that it replaces by force after so long; 0: the default */
        const char *named_after;   /* a path or URI that the daemon derives the name from; NULL: the source */
} streamer_load_opts;
#define STREAMER_LOAD_OPTS_INIT STREAMER_INIT(streamer_load_opts)

/* Starts a load, or joins one of the same source that is running or resident. Returns when the daemon has
 * accepted it; the load does not end with this client. The caller owns *op (streamer_op_free). */
STREAMER_API int streamer_load(streamer_client *client, const streamer_load_opts *opts, streamer_op **op);

typedef struct streamer_progress {
        size_t struct_size;
        uint64_t bytes;         /* loaded and hashed */
        uint64_t total;         /* 0 until the source has been read */
        uint64_t tensors;       /* complete */
        uint64_t tensors_total; /* 0 until the source has been read */
        uint64_t load_ns;       /* since the load began; its duration once it has ended */
        uint64_t generation;    /* 0 until known */
        const char *state;      /* "resolving", "queued", "loading", "ready", "failed", "cancelled"; constant */
        const char *name;       /* of the model; borrowed from the operation */
        int resident;           /* 1: every device held these files already, and nothing was read */
        uint64_t restarts;      /* how often it began again, because a file was replaced while it was read: 0 to 3 */
} streamer_progress;
#define STREAMER_PROGRESS_INIT STREAMER_INIT(streamer_progress)

/* Waits until the load has ended: 0 when the model is ready on all its devices; the error of a failed load;
 * STREAMER_EFAILED if only some devices failed (then the state is "ready": streamer_op_failure_get);
 * STREAMER_ETIMEOUT while it continues. timeout_ms 0 only looks, -1 waits without limit. `progress` may be NULL;
 * it is filled in each of these cases. STREAMER_ELOST if the connection was lost meanwhile: start the load again,
 * which joins one that the daemon continued. */
STREAMER_API int streamer_op_wait(streamer_op *op, int timeout_ms, streamer_progress *progress);

/* A device on which the load failed. */
typedef struct streamer_device_failure {
        size_t struct_size;
        const char *device; /* borrowed from the operation */
        const char *text;   /* borrowed from the operation */
        int err;            /* STREAMER_E* */
} streamer_device_failure;
#define STREAMER_DEVICE_FAILURE_INIT STREAMER_INIT(streamer_device_failure)

/* The failures of a load that has ended; STREAMER_ENOENT after the last. */
STREAMER_API size_t streamer_op_failure_count(const streamer_op *op);
STREAMER_API int streamer_op_failure_get(const streamer_op *op, size_t i, streamer_device_failure *failure);

/* A model that was evicted for the load. */
typedef struct streamer_eviction {
        size_t struct_size;
        const char *model;  /* borrowed from the operation */
        const char *device; /* borrowed from the operation */
        uint64_t generation;
        uint64_t bytes; /* of the device, that it held */
} streamer_eviction;
#define STREAMER_EVICTION_INIT STREAMER_INIT(streamer_eviction)

/* What was evicted for a load that has ended, ready or not: at most 256 models; STREAMER_ENOENT after the last. */
STREAMER_API size_t streamer_op_eviction_count(const streamer_op *op);
STREAMER_API int streamer_op_eviction_get(const streamer_op *op, size_t i, streamer_eviction *eviction);

/* The name of the model that is loaded. Borrowed from the operation. */
STREAMER_API const char *streamer_op_model(const streamer_op *op);

/* Stops watching; accepts NULL. The load continues. A lease that streamer_op_lease() has not returned ends. */
STREAMER_API void streamer_op_free(streamer_op *op);

/* Waits until the model is ready. STREAMER_EFAILED if its load failed, STREAMER_ENOENT if there is no such
 * model, STREAMER_ETIMEOUT while it loads. timeout_ms: 0 only looks, -1: no limit. */
STREAMER_API int streamer_wait(streamer_client *client, const char *model, int timeout_ms);

/* Cancels the newest load of this name, on all its devices. STREAMER_EFAILED if the model is not loading. */
STREAMER_API int streamer_cancel(streamer_client *client, const char *model);

#define STREAMER_UNLOAD_DRAIN 1u /* refuse new attaches, free with the last lease, return at once */
#define STREAMER_UNLOAD_FORCE 2u /* also notify the holders of leases: streamer_lease_check() is STREAMER_EREVOKED */

/* Unloads a model from all its devices. STREAMER_EBUSY if it has leases and no flag is given. Memory that a
 * process may have mapped is never freed, whatever the flags. */
STREAMER_API int streamer_unload(streamer_client *client, const char *model, unsigned flags);

/* A pinned model is never evicted and does not expire; the pin belongs to the name, and stays when another
 * generation replaces this one. pinned: 1 or 0. */
STREAMER_API int streamer_pin(streamer_client *client, const char *model, int pinned);

/* Unloads the model after so long without a lease, counted from now if it has none. 0: the daemon's default. */
STREAMER_API int streamer_keep_alive(streamer_client *client, const char *model, uint64_t keep_alive_ms);

/* Every other request. `args_json` is an object of the verb's fields (docs/protocol.md) or NULL; *reply_json is
 * the reply as an object, owned by the caller (streamer_free), or NULL if not needed. Long lists are complete. */
STREAMER_API int streamer_call(streamer_client *client, const char *verb, const char *args_json, char **reply_json);

/* ---- events ------------------------------------------------------------------------------------ */

/* From now on streamer_event_next() returns the changes of this model, or of all models (NULL). */
STREAMER_API int streamer_subscribe(streamer_client *client, const char *model);

/* Waits for the next event; needs streamer_subscribe(). *event_json is one object (docs/protocol.md), owned by the
 * caller (streamer_free). timeout_ms: 0 only looks, -1: no limit. STREAMER_ETIMEOUT if there is none;
 * STREAMER_EUNREACHABLE if the connection was lost: when another call has reconnected, an event "lost" comes first. */
STREAMER_API int streamer_event_next(streamer_client *client, int timeout_ms, char **event_json);

/* ---- attach ------------------------------------------------------------------------------------ */

#define STREAMER_ATTACH_READY 1u /* wait until the whole model is ready */
/* Host device: map copy-on-write and writable instead of read-only. A page that is written to is copied. A model with
 * hugetlb pages is mapped read-only all the same (streamer_lease_writable() is 0): a copy of such a page takes one from
 * the pool, and a pool that has none left would end the process with SIGBUS. */
#define STREAMER_ATTACH_PRIVATE 2u

typedef struct streamer_attach_opts {
        size_t struct_size;
        unsigned flags;      /* STREAMER_ATTACH_* */
        const char *device;  /* NULL: the only device that the model is on */
        const char *digest;  /* NULL, or the 32 hexadecimal digits that the model must have (waits until ready) */
        uint64_t generation; /* 0, or the generation that it must be */
        int timeout_ms;      /* 0: the client's; -1: no limit; not used by streamer_open() */
} streamer_attach_opts;
#define STREAMER_ATTACH_OPTS_INIT STREAMER_INIT(streamer_attach_opts)

/* Attaches to a model that is ready, or loading: then streamer_tensor_next() returns its tensors as they arrive. One
 * whose files are encrypted is waited for until it is ready. `model` may be NULL if opts->digest is given: any model
 * that is ready and has this digest. A daemon that does not answer is given up a second after timeout_ms, since the
 * daemon ends the wait itself and says what it waited for. The caller owns *lease (streamer_detach). */
STREAMER_API int streamer_attach(streamer_client *client, const char *model, const streamer_attach_opts *opts,
                                 streamer_lease **lease);

typedef struct streamer_open_opts {
        size_t struct_size;
        const streamer_load_opts *load; /* NULL: defaults; its `source` must be NULL, STREAMER_LOAD_DETACH not set */
        const streamer_attach_opts *attach; /* NULL: defaults */
        int timeout_ms;                     /* streamer_open(): for the whole call; 0 or -1: no limit */
} streamer_open_opts;
#define STREAMER_OPEN_OPTS_INIT STREAMER_INIT(streamer_open_opts)

/* Loads a model and attaches to it in one step: streamer_open_start(), streamer_op_lease(), streamer_op_free(). */
STREAMER_API int streamer_open(streamer_client *client, const char *source_or_name, const streamer_open_opts *opts,
                               streamer_lease **lease);

/* Starts to load and attach. A URL, a path (with a leading '/' or '.', or one that exists) and an org/name[@rev]
 * in the HF cache are sources: the load starts, or joins one that is running or resident. Anything else is the
 * name of a model that is resident or loading. The lease is of the generation that this load produces, even while
 * an older one serves the name, and even if the model is unloaded as soon as it is ready. Returns when the
 * daemon has accepted the load; of a name at once, and the operation ends when its lease can be returned. The caller
 * owns *op (streamer_op_free). */
STREAMER_API int streamer_open_start(streamer_client *client, const char *source_or_name,
                                     const streamer_open_opts *opts, streamer_op **op);

/* The lease of an operation of streamer_open_start(), as soon as the model can be attached to; with
 * STREAMER_ATTACH_READY or a digest, once it is ready. timeout_ms: 0 only looks, -1: no limit. The lease is returned
 * once and belongs to the caller (streamer_detach); after that STREAMER_EINVAL. The error of a failed load. */
STREAMER_API int streamer_op_lease(streamer_op *op, int timeout_ms, streamer_lease **lease);

/* 0 while the daemon holds the lease. STREAMER_ELOST: the daemon restarted without it. STREAMER_EREVOKED: the model
 * was unloaded by force; the memory stays mapped and unchanged until the detach. STREAMER_EUNREACHABLE: the daemon
 * does not run. A lost lease stays readable if the memory is the host's or was shared by descriptor; for GPU
 * memory that was shared by cudaIpcMemHandle_t every call on the lease returns STREAMER_ELOST. */
STREAMER_API int streamer_lease_check(streamer_lease *lease);

/* Unmaps the memory and ends the lease; accepts NULL. It does not wait for the daemon: if the connection was lost, the
 * next call that reconnects ends the lease. */
STREAMER_API void streamer_detach(streamer_lease *lease);

/* The name of the model as the daemon reported it, its generation, and its digest as 32 hexadecimal digits ("" while
 * it loads). Borrowed from the lease. */
STREAMER_API const char *streamer_lease_model(const streamer_lease *lease);
STREAMER_API uint64_t streamer_generation(const streamer_lease *lease);
STREAMER_API const char *streamer_digest(streamer_lease *lease);

/* 1 if this process can write to the lease's memory, else 0: to its own copy with STREAMER_ATTACH_PRIVATE, to the
 * memory of all clients by cuda-ipc, and by cuda-vmm-fd where the driver refuses a mapping for reading alone. */
STREAMER_API int streamer_lease_writable(const streamer_lease *lease);

/* The checkpoint's own metadata (`__metadata__`): the value of a key, or NULL; their number; pair i in the file's
 * order, STREAMER_ENOENT after the last. Borrowed from the lease. streamer_has_metadata() is 1 if the checkpoint has
 * metadata, which may be empty, and else 0. */
STREAMER_API const char *streamer_metadata(const streamer_lease *lease, const char *key);
STREAMER_API int streamer_has_metadata(const streamer_lease *lease);
STREAMER_API size_t streamer_metadata_count(const streamer_lease *lease);
STREAMER_API int streamer_metadata_get(const streamer_lease *lease, size_t i, const char **key, const char **value);

/* ---- tensors ----------------------------------------------------------------------------------- */

/* Streams: when a function returns a tensor, the copy of its bytes to the device has completed. It may be read at
 * once, from any thread and on any CUDA stream, without synchronisation. */
typedef struct streamer_tensor {
        size_t struct_size;
        const char *name;       /* borrowed from the lease */
        const char *dtype_name; /* as in safetensors files: "BF16", "F8_E4M3"; constant */
        streamer_dtype dtype;
        uint32_t rank;         /* number of dimensions; 0 for a scalar */
        const uint64_t *shape; /* `rank` dimensions, in elements, row-major; borrowed from the lease */
        uint64_t bytes;
        uint64_t offset;          /* in the segment */
        uint32_t segment;         /* index below streamer_segment_count() */
        int device_index;         /* this process's ordinal of the device; 0 for the host */
        const void *data;         /* address in this process, or on the device; NULL for an empty tensor */
        const char *device_kind;  /* "host", "cuda"; constant */
        unsigned char digest[16]; /* XXH3-128 over the XXH3-128 of its 1 MiB leaves, canonical order */
} streamer_tensor;
#define STREAMER_TENSOR_INIT STREAMER_INIT(streamer_tensor)

STREAMER_API int streamer_tensor_count(const streamer_lease *lease, size_t *count);

/* The name of a tensor by index, in byte order of names; also of one that has not arrived yet. Borrowed from the lease.
 * STREAMER_ENOENT after the last, STREAMER_ECORRUPT if its record is inconsistent. */
STREAMER_API int streamer_tensor_name(const streamer_lease *lease, size_t i, const char **name);

/* By index, in byte order of names, or by name. STREAMER_ENOENT if there is none, STREAMER_EBUSY if it has not
 * arrived yet, STREAMER_ECORRUPT if its record is inconsistent, STREAMER_EUNSUPPORTED if its dtype is newer than this
 * library. */
STREAMER_API int streamer_tensor_get(const streamer_lease *lease, size_t i, streamer_tensor *tensor);
STREAMER_API int streamer_tensor_find(const streamer_lease *lease, const char *name, streamer_tensor *tensor);

/* Each tensor once per lease, in order of arrival. timeout_ms: 0 only looks, -1: no limit. STREAMER_EEND after the
 * last, when the daemon has confirmed that the source did not change; STREAMER_ETIMEOUT; the error of a load that
 * failed. A model that was unloaded by force still returns all its tensors. */
STREAMER_API int streamer_tensor_next(streamer_lease *lease, int timeout_ms, streamer_tensor *tensor);

/* Copies `len` bytes of a tensor of this lease, beginning at `offset`, to host memory, whatever the device.
 * STREAMER_EINVAL if they are not all inside the tensor. */
STREAMER_API int streamer_tensor_read(const streamer_lease *lease, const streamer_tensor *tensor, uint64_t offset,
                                      void *to, size_t len);

#define STREAMER_DLPACK_UNVERSIONED 1u /* a DLManagedTensor instead of a DLManagedTensorVersioned */

/* *managed is a DLManagedTensorVersioned (DLPack 1.1) with the tensor's dtype and shape. It is read-only, as its flag
 * says, unless the lease is STREAMER_ATTACH_PRIVATE and writable; a DLManagedTensor has no such flag. The caller owns
 * it and calls its deleter, or hands it to a framework that does. It keeps the memory mapped, and the lease, after
 * streamer_detach(). F4 is exported as pairs (4 bits, 2 lanes), with the last dimension halved.
 * STREAMER_EUNSUPPORTED if DLPack has no such dtype. */
STREAMER_API int streamer_tensor_dlpack(streamer_lease *lease, const streamer_tensor *tensor, unsigned flags,
                                        void **managed);

/* ---- segments ---------------------------------------------------------------------------------- */

/* The memory that tensors lie in. */
typedef struct streamer_segment {
        size_t struct_size;
        const void *data; /* its address in this process, or on the device */
        uint64_t size;
        const char *device_kind; /* "host", "cuda"; constant */
        int device_index;        /* this process's ordinal of the device; 0 for the host */
} streamer_segment;
#define STREAMER_SEGMENT_INIT STREAMER_INIT(streamer_segment)

STREAMER_API size_t streamer_segment_count(const streamer_lease *lease);

/* STREAMER_ENOENT after the last. */
STREAMER_API int streamer_segment_get(const streamer_lease *lease, size_t i, streamer_segment *segment);

/* The whole segment, as streamer_tensor_dlpack(): one dimension of uint8. */
STREAMER_API int streamer_segment_dlpack(streamer_lease *lease, size_t i, unsigned flags, void **managed);

/* ---- publish ----------------------------------------------------------------------------------- */

/* A published model is what an engine has made of its weights (fused, converted, padded): the memory itself, and a
 * table of the tensors in it. The process that made it writes it into memory of the daemon; the next process finds it
 * by its name and key, attaches to it as to any model (streamer_attach), and reads the table.
 *
 *   find (claims it) > begin > storage, tensor, attribute > commit > lease
 *
 * Nothing is visible to others before the commit. Until then everything ends with streamer_publish_abort(), with the
 * connection and with the process. The calls on one publication are made by one thread at a time. */
typedef struct streamer_publication streamer_publication;

#define STREAMER_PUBLISH_REPLACE 1u /* claim it even where it is published already with this key and base */
#define STREAMER_PUBLISH_NO_WAIT 2u /* do not wait for another process that publishes it: "claimed" */
/* What is published is an ordinary model: its tensors are read as those of a file (streamer_tensor_get()), its
 * attributes are its metadata, and it has no table. Each tensor has a dtype of safetensors ("BF16"), is contiguous and
 * shares no bytes with another; no name begins with "streamerd.". F4 is described in pairs, of a byte: the model's
 * tensor has twice the last dimension. With STREAMER_PUBLISH_REPLACE each publication is a new generation of the name;
 * publish.keep of the configuration limits how many are in memory. */
#define STREAMER_PUBLISH_TENSORS 4u

/* What is searched for, or published. */
typedef struct streamer_publish_opts {
        size_t struct_size;
        const char *name;       /* required: the name of the published model */
        const char *base;       /* NULL, or what it is made from: a source, or the name of a model that is resident */
        const char *const *key; /* "NAME=VALUE" each, at most 255 bytes and 100 of them: all that its content depends
                                   on besides the base. The order does not matter; a NAME may occur once */
        size_t n_key;
        const char *device; /* NULL: the daemon's only device */
        unsigned flags;     /* STREAMER_PUBLISH_* */
        int timeout_ms;     /* of the search and the wait for another publisher; 0: the client's; -1: no limit */
} streamer_publish_opts;
#define STREAMER_PUBLISH_OPTS_INIT STREAMER_INIT(streamer_publish_opts)

typedef struct streamer_found {
        size_t struct_size;
        const char *state;   /* "hit", "absent", "mismatch", "stale", "claimed"; constant */
        uint64_t generation; /* hit: to attach to (streamer_attach_opts) */
        int64_t pid;         /* claimed: the process that publishes it, or 0 if it is in another PID namespace */
        char digest[33];     /* hit: of the model, 32 hexadecimal digits; else "" */
        char *differs;       /* mismatch: the fields that differ, as JSON [{"field","have","want"}], where `have` is the
                                published model's and null stands for an absent field; "base" is a field. Owned by the
                                caller (streamer_free). Else NULL */
} streamer_found;
#define STREAMER_FOUND_INIT STREAMER_INIT(streamer_found)

/* Searches for a published model of this name. It is a hit only if the whole key is equal, the base too (NULL: any),
 * and no file of the base has changed since; if one has, it is stale, and the daemon unloads it. If it is not a hit and
 * `claim` is not NULL, *claim is the right to publish it, which no other process gets meanwhile; else *claim is NULL.
 * If it is not a hit and another process has the claim, the call waits for that one's commit or abort, unless the flags
 * say otherwise: STREAMER_ETIMEOUT. The caller owns *claim (streamer_publish_commit or streamer_publish_abort).
 * STREAMER_EPERM if the name is another user's, and for a base that a caller without the role load names, unless it is
 * the published model's as its publisher wrote it, or a resident model. */
STREAMER_API int streamer_publish_find(streamer_client *client, const streamer_publish_opts *opts,
                                       streamer_found *found, streamer_publication **claim);

/* Reserves memory for n storages of these sizes, evicting other models if necessary. A storage is a contiguous range of
 * memory, aligned to 256 bytes, which tensors lie in. STREAMER_ENOMEM if the device's budget does not suffice, also
 * because the generation that serves stays until this one is ready; STREAMER_ELIMIT if the user may not have as much,
 * or if it is made of tensors, and as many generations as are kept would remain in memory beside it. */
STREAMER_API int streamer_publish_begin(streamer_publication *publication, const uint64_t *bytes, size_t n);

/* *data is the address of storage i: writable memory of the device, zeroed; NULL if its size is 0. It is
 * allocated by this call, together with its neighbours (about 5 % of the whole): a caller that copies in the order of
 * storages and frees its own as it proceeds needs no second copy of the model. */
STREAMER_API int streamer_publish_storage(streamer_publication *publication, size_t i, void **data);

enum streamer_published_kind {
        STREAMER_PUBLISHED_PARAMETER = 1,
        STREAMER_PUBLISHED_BUFFER = 2,
        STREAMER_PUBLISHED_ATTRIBUTE = 3 /* any other tensor that the engine has made */
};
typedef enum streamer_published_kind streamer_published_kind;

#define STREAMER_PUBLISHED_PERSISTENT 1u /* a buffer that is part of the state */
#define STREAMER_PUBLISHED_CLONE 2u      /* the engine writes to it: who attaches copies it first */
#define STREAMER_PUBLISHED_HOST 4u       /* the engine has it in host memory: who attaches copies it there */
#define STREAMER_PUBLISHED_GRAD 8u       /* requires a gradient */

/* A tensor of a published model. */
typedef struct streamer_published_tensor {
        size_t struct_size;
        const char *name;  /* unique in the model; when it was read: borrowed from the lease, as all below */
        const char *dtype; /* the framework's own name of the element type */
        uint32_t item;     /* bytes of an element, 1 to 16; F4: of a pair (see STREAMER_PUBLISH_TENSORS) */
        streamer_published_kind kind;
        unsigned flags;          /* STREAMER_PUBLISHED_* */
        uint32_t alias;          /* tensors that share bytes have the same number here; 0: it shares none */
        uint32_t rank;           /* at most 64 */
        const uint64_t *shape;   /* `rank` dimensions */
        const uint64_t *strides; /* `rank` steps, in elements; 0 repeats */
        size_t storage;          /* that it lies in */
        uint64_t offset;         /* of its first element there, in bytes; a multiple of `item` */
        const void *data;        /* read: its first element; NULL if it has none. Published: not used, NULL */
} streamer_published_tensor;
#define STREAMER_PUBLISHED_TENSOR_INIT STREAMER_INIT(streamer_published_tensor)

/* Describes a tensor. STREAMER_EINVAL if it does not lie in its storage. The library copies all of it. */
STREAMER_API int streamer_publish_tensor(streamer_publication *publication, const streamer_published_tensor *tensor);

/* Adds a text that belongs to the model: a value that is no tensor, a class name, a list. The names are the engine's
 * and unique. A name or a text has at most 65536 bytes, and with the descriptions of the tensors all have 256 MiB. */
STREAMER_API int streamer_publish_attribute(streamer_publication *publication, const char *name, const char *value);

/* Publishes it. The copies to the memory must be complete (on a GPU: synchronised). The library makes the memory
 * private to this process, at the same addresses: later writes of this process reach no other one. (Hugetlb pages,
 * which the daemon uses only where its device is configured with them, become read-only: streamer_lease_writable() is
 * 0.) Then the daemon seals and hashes it, and the model exists. STREAMER_EBUSY if this process, or one that it forked,
 * still has a writable mapping of the memory; STREAMER_EINVAL if a storage was not requested, or if the table is
 * refused (an overlap that is not declared by `alias`); STREAMER_EFAILED if the base has changed meanwhile;
 * STREAMER_ENOMEM if the device has no capacity for the table, which is added to the bytes of streamer_publish_begin();
 * STREAMER_ELIMIT if the table exceeds 256 MiB.
 *
 * On success the publication is released, and the memory belongs to *lease, at the same addresses (streamer_detach).
 * After a failure the memory stays mapped, with its contents, until streamer_publish_abort(). */
STREAMER_API int streamer_publish_commit(streamer_publication *publication, streamer_lease **lease);

/* Unmaps the memory, ends the claim and releases the publication, whatever its state; accepts NULL. */
STREAMER_API void streamer_publish_abort(streamer_publication *publication);

/* The table of a published model. The first call reads and checks it: STREAMER_ECORRUPT. STREAMER_ENOENT if the model
 * was not published, and after the last tensor. Its key and base are in the metadata: "streamerd.base",
 * "streamerd.key.NAME". */
STREAMER_API int streamer_published_count(streamer_lease *lease, size_t *tensors, size_t *storages, size_t *attributes);
STREAMER_API int streamer_published_get(streamer_lease *lease, size_t i, streamer_published_tensor *tensor);
STREAMER_API int streamer_published_find(streamer_lease *lease, const char *name, streamer_published_tensor *tensor);

/* Storage i as a tensor of bytes: streamer_tensor_dlpack(), streamer_tensor_read(). */
STREAMER_API int streamer_published_storage(streamer_lease *lease, size_t i, streamer_tensor *storage);

/* Attribute i. Borrowed from the lease. */
STREAMER_API int streamer_published_attribute(streamer_lease *lease, size_t i, const char **name, const char **value);

/* ---- files of a source ------------------------------------------------------------------------- */

/* Reads a small file beside the weights of a source, such as "config.json" or "tokenizer.json". *data holds *size
 * bytes and a NUL after them, owned by the caller (streamer_free). STREAMER_ENOENT if the source has no such file. */
STREAMER_API int streamer_fetch(streamer_client *client, const char *source, const char *file, void **data,
                                uint64_t *size);

/* Lists the files of a source: *json is {"files":[{"name","bytes"}]}, owned by the caller (streamer_free). */
STREAMER_API int streamer_fetch_list(streamer_client *client, const char *source, char **json);

#ifdef __cplusplus
}
#endif
#endif
