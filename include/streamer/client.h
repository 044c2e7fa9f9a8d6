/* SPDX-License-Identifier: Apache-2.0
 *
 * libstreamer-client: attach to model weights that streamerd keeps resident.
 *
 * Conventions
 *   - Every function that can fail returns int: 0, or a negative STREAMER_E*.
 *     streamer_strerror() names the code, streamer_last_error() tells the story of the last
 *     failed call on that client in the calling thread's view (see there).
 *   - Option structs begin with `struct_size`; set it to sizeof of the struct that you compiled
 *     against, zero the rest. A NULL options pointer means all defaults.
 *   - A client may be used from any number of threads; calls on one client are locked internally.
 *     A lease, an operation or a list may be used from several threads, but must be released once,
 *     by one thread, when no other uses it.
 *   - Handles are released in any order: a lease keeps what it needs of its client alive, and
 *     stays readable after streamer_close() and after the daemon's death.
 *   - A connection that is lost (the daemon restarted) is made again by the next call, which waits for
 *     the daemon for up to 3 s; then leases are claimed again. Memory of the host, and of GPUs by
 *     descriptor, stays mapped and readable throughout. What did not come back is STREAMER_ELOST, and
 *     streamer_lease_check() tells. Calls that were under way answer STREAMER_EUNREACHABLE and are not
 *     repeated, since they may have had their effect.
 *   - The library prints nothing, installs no signal handler, starts no thread, and keeps no global
 *     state but the GPU segments that are open, as CUDA has each once in a process. In a forked
 *     child every call answers STREAMER_EFORK; host memory that was mapped stays readable there.
 *   - All strings are UTF-8 and NUL-terminated. All sizes and offsets are bytes.
 */
#ifndef STREAMER_CLIENT_H
#define STREAMER_CLIENT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define STREAMER_ABI_VERSION 1u

#if defined(__GNUC__)
#define STREAMER_API __attribute__((visibility("default")))
#else
#define STREAMER_API
#endif

/* Outcomes. Stable: a value is never reused. */
enum {
        STREAMER_OK = 0,
        STREAMER_EFAILED = -1,       /* the load failed, or the daemon could not do it: bad file, I/O error */
        STREAMER_EINVAL = -2,        /* a malformed argument or request */
        STREAMER_ENOENT = -3,        /* no such model, tensor or source */
        STREAMER_EUNREACHABLE = -4,  /* no daemon on the socket, or the connection is gone */
        STREAMER_ETIMEOUT = -5,      /* not done within the time given; it goes on */
        STREAMER_EBUSY = -6,         /* in use: the model has leases */
        STREAMER_ENOMEM = -7,        /* does not fit the device's budget, or no memory */
        STREAMER_EPERM = -8,         /* the daemon does not allow it to this user */
        STREAMER_EEND = -9,          /* after the last tensor */
        STREAMER_EFORK = -10,        /* the handle belongs to the parent process */
        STREAMER_ELOST = -11,        /* the daemon restarted and does not hold this lease any more */
        STREAMER_EPROTO = -12,       /* the daemon said something this library does not understand */
        STREAMER_ECANCELED = -13,    /* the load was cancelled */
        STREAMER_EDIGEST = -14,      /* the model's digest is not the one that was asked for */
        STREAMER_ELIMIT = -15,       /* a limit of the daemon: connections, leases, queued loads */
        STREAMER_EUNSUPPORTED = -16, /* this build, device or kernel cannot do it */
        STREAMER_ECORRUPT = -17,     /* the tensor table does not hold together */
        STREAMER_EOS = -18,          /* a system call of this process failed */
        STREAMER_EREVOKED = -19, /* the model was unloaded by force: the lease's memory stays until it is detached */
};
#define STREAMER_E_END STREAMER_EEND
#define STREAMER_E_TIMEOUT STREAMER_ETIMEOUT

typedef struct streamer_client streamer_client;
typedef struct streamer_op streamer_op;
typedef struct streamer_lease streamer_lease;
typedef struct streamer_model_list streamer_model_list;

/* ---- library ---------------------------------------------------------------------------------- */

/* STREAMER_ABI_VERSION of the library that was linked at run time. */
STREAMER_API uint32_t streamer_abi_version(void);

/* A constant text for an outcome; never NULL. */
STREAMER_API const char *streamer_strerror(int err);

/* The exit code by which a command should tell an outcome: 0, or as streamerctl has it (see
 * docs/errors.md). */
STREAMER_API int streamer_exit_code(int err);

/* ---- connection -------------------------------------------------------------------------------- */

typedef struct streamer_connect_opts {
        size_t struct_size;
        const char *socket; /* NULL: $STREAMERD_SOCKET, else /run/streamerd/streamerd.sock */
        int timeout_ms;     /* for the connection and for one reply; 0: 10 s; -1: none */
} streamer_connect_opts;

/* Connects and shakes hands. On success the caller owns *client (streamer_close). */
STREAMER_API int streamer_connect(const streamer_connect_opts *opts, streamer_client **client);

/* Closes the connection; accepts NULL. Leases that were not detached are orphans in the daemon's
 * books until this process exits; their memory stays mapped until streamer_detach(). */
STREAMER_API void streamer_close(streamer_client *client);

/* The connection's descriptor, for poll(): POLLHUP means that the daemon is gone, or was (in gVisor it is only
 * readable then, and a call that fails with STREAMER_EUNREACHABLE tells it). Borrowed. It
 * keeps its number when the connection is made again, though an epoll set must take it in anew. */
STREAMER_API int streamer_fd(const streamer_client *client);

/* Text of the last call that failed on this client in this thread; "" if none. Valid until the
 * thread's next call on this client. After a failed streamer_connect(), where there is no client,
 * pass NULL: the text of this thread's last failed connect. */
STREAMER_API const char *streamer_last_error(const streamer_client *client);

/* ---- models ------------------------------------------------------------------------------------ */

typedef struct streamer_model {
        const char *name;
        const char *source;
        const char *state;  /* "queued", "loading", "ready", "draining", "cached" (in the host cache), "failed" */
        const char *digest; /* 32 hex digits; "" until ready */
        uint64_t generation;
        uint64_t bytes;   /* of tensor data */
        uint64_t tensors; /* number of tensors */
        uint64_t leases;
        uint64_t load_ns; /* duration of the load; 0 until ready */
} streamer_model;

/* The caller owns *list (streamer_model_list_free); the models are borrowed from it. */
STREAMER_API int streamer_list(streamer_client *client, streamer_model_list **list);
STREAMER_API size_t streamer_model_list_count(const streamer_model_list *list);
STREAMER_API int streamer_model_list_get(const streamer_model_list *list, size_t i, streamer_model *model);
STREAMER_API void streamer_model_list_free(streamer_model_list *list);

#define STREAMER_LOAD_DETACH 1u   /* send no progress: the operation only knows the model's name */
#define STREAMER_LOAD_WAIT 2u     /* where it does not fit now, wait for memory instead of failing */
#define STREAMER_LOAD_NO_EVICT 4u /* evict no other model for it */
#define STREAMER_LOAD_PIN 8u      /* never evict it, and do not let it expire */

typedef struct streamer_load_opts {
        size_t struct_size;
        const char *source; /* required: path, file://, org/name[@rev] in the HF cache, https://, s3://, hf:// */
        const char *name;   /* NULL: derived from the source */
        const char *const *devices; /* NULL: the daemon's only device; several: the files are read once */
        size_t n_devices;
        const char *verify; /* NULL or "none", or "sha256" */
        unsigned flags;
        unsigned priority;         /* 1 to 10000, 0: the daemon's default: its share where loads run side by side */
        const char *layout;        /* NULL or "replica": the same on each device; "rank": rank r to the r-th */
        const char *pattern;       /* of the ranks' files; NULL: model-rank-{rank}-part-{part}.safetensors */
        uint64_t keep_alive_ms;    /* the model goes after so long without a lease; 0: the daemon's default */
        uint64_t drain_timeout_ms; /* what it replaces is unloaded by force after so long; 0: the default */
} streamer_load_opts;

/* Asks the daemon to load. Returns when the request is accepted; the load survives this client.
 * The caller owns *op (streamer_op_free), which only watches. */
STREAMER_API int streamer_load(streamer_client *client, const streamer_load_opts *opts, streamer_op **op);

typedef struct streamer_progress {
        size_t struct_size;
        uint64_t bytes;         /* landed and hashed */
        uint64_t total;         /* 0 until the source has been read */
        uint64_t tensors;       /* whole */
        uint64_t tensors_total; /* 0 until the source has been read */
        uint64_t elapsed_ns;
        uint64_t generation; /* 0 until known */
        const char *state;   /* "resolving", "queued", "loading", "ready", "failed", "cancelled"; constant */
        const char *model;   /* its name; borrowed from the operation */
} streamer_progress;

/* Waits until the load has ended: 0 when ready on all its devices, its error when failed (text in
 * streamer_last_error), STREAMER_EFAILED where some of its devices did not get it (the state is
 * "ready" then, and the others serve: streamer_op_failure_get), STREAMER_ETIMEOUT while it goes on.
 * timeout_ms 0 only looks, -1 waits without limit. `progress` may be NULL; it is filled in each of
 * these cases. STREAMER_ELOST when the daemon went meanwhile: a load that the daemon is to go on
 * with is asked for again. */
STREAMER_API int streamer_op_wait(streamer_op *op, int timeout_ms, streamer_progress *progress);

/* One of the load's devices that did not get it. Borrowed from the operation. */
typedef struct streamer_device_failure {
        const char *device;
        const char *text;
        int err;
} streamer_device_failure;

/* Known once the load has ended; STREAMER_ENOENT after the last. */
STREAMER_API size_t streamer_op_failure_count(const streamer_op *op);
STREAMER_API int streamer_op_failure_get(const streamer_op *op, size_t i, streamer_device_failure *failure);

/* The name that the model has in the daemon. Borrowed from the operation. */
STREAMER_API const char *streamer_op_model(const streamer_op *op);
STREAMER_API void streamer_op_free(streamer_op *op);

#define STREAMER_UNLOAD_DRAIN 1u /* refuse new attaches, free with the last lease, return at once */
#define STREAMER_UNLOAD_FORCE 2u /* and tell those who hold a lease that the model was taken (streamer_lease_check) */

/* STREAMER_EBUSY if leased and no flag is given; STREAMER_ENOENT if unknown. Memory that a process may
 * have mapped is never freed under it, whatever the flags. */
STREAMER_API int streamer_unload(streamer_client *client, const char *model, unsigned flags);

/* A pinned model is never evicted and does not expire; the pin stays with the name when another
 * generation comes to serve it. pinned: 1 or 0. */
STREAMER_API int streamer_pin(streamer_client *client, const char *model, int pinned);

/* From now on streamer_event_next() brings changes of this model, or (NULL) of all. The descriptor of
 * streamer_fd() becomes readable when something came. */
STREAMER_API int streamer_subscribe(streamer_client *client, const char *model);

/* Every other verb. `args_json` is an object of the verb's fields (docs/protocol.md) or NULL;
 * *reply_json is the reply object, owned by the caller (free()). Long lists come whole. May be
 * NULL if not wanted. */
STREAMER_API int streamer_call(streamer_client *client, const char *verb, const char *args_json, char **reply_json);

/* Reads the next event of a connection that called "subscribe": *event_json is one object, owned
 * by the caller (free()). STREAMER_ETIMEOUT, or STREAMER_EUNREACHABLE when the daemon is gone; once
 * another call has made the connection again, events go on, "lost" first. */
STREAMER_API int streamer_event_next(streamer_client *client, int timeout_ms, char **event_json);

/* ---- attach ------------------------------------------------------------------------------------ */

#define STREAMER_ATTACH_READY 1u   /* wait until the whole model is ready */
#define STREAMER_ATTACH_PRIVATE 2u /* host device: map copy-on-write and writable instead of read-only */

typedef struct streamer_attach_opts {
        size_t struct_size;
        unsigned flags;
        const char *device;  /* NULL: the only device the model is on */
        const char *digest;  /* NULL, or the 32 hex digits the model must have (waits for ready) */
        uint64_t generation; /* 0, or the generation it must be */
        int timeout_ms;      /* for STREAMER_ATTACH_READY and digest; 0: the client's; -1: none */
} streamer_attach_opts;

typedef struct streamer_tensor {
        const char *name;      /* borrowed from the lease */
        const char *dtype;     /* safetensors code: "BF16", "F8_E4M3", ... */
        uint32_t rank;         /* number of dimensions; 0 for a scalar */
        const uint64_t *shape; /* `rank` dimensions, in elements; borrowed from the lease */
        uint64_t bytes;
        uint32_t segment;         /* index below streamer_segment_count() */
        uint64_t offset;          /* in that segment */
        const void *data;         /* address in this process; a device pointer where the device is not the host;
                                     NULL for an empty tensor */
        const char *device_kind;  /* "host", "cuda" */
        int device_index;         /* this process's ordinal of the device; 0 for the host */
        unsigned char digest[16]; /* XXH3-128 over the XXH3-128 of its 1 MiB leaves, canonical order */
} streamer_tensor;

/* Attaches to a model that is ready, or loading (then tensors become readable as they arrive:
 * streamer_tensor_next). On success the caller owns *lease (streamer_detach). */
STREAMER_API int streamer_attach(streamer_client *client, const char *model, const streamer_attach_opts *opts,
                                 streamer_lease **lease);

STREAMER_API int streamer_tensor_count(const streamer_lease *lease, size_t *count);

/* By index in byte order of names. STREAMER_EBUSY if it has not arrived yet,
 * STREAMER_ECORRUPT if its record does not hold together. */
STREAMER_API int streamer_tensor_get(const streamer_lease *lease, size_t i, streamer_tensor *tensor);
STREAMER_API int streamer_tensor_find(const streamer_lease *lease, const char *name, streamer_tensor *tensor);

/* Copies `len` bytes of a tensor, from `offset` on, to host memory, whatever the device. STREAMER_EINVAL
 * where they are not all inside it. The tensor is one that this lease handed out. */
STREAMER_API int streamer_tensor_read(const streamer_lease *lease, const streamer_tensor *tensor, uint64_t offset,
                                      void *to, size_t len);

/* In order of arrival: each tensor once per lease. STREAMER_EEND after the last,
 * STREAMER_ETIMEOUT, STREAMER_EFAILED if the load failed late. Of a model that was unloaded by force all are
 * handed out, too: only streamer_lease_check() tells. */
STREAMER_API int streamer_tensor_next(streamer_lease *lease, int timeout_ms, streamer_tensor *tensor);

/* The checkpoint's own metadata (`__metadata__`); NULL if there is no such key. Borrowed. */
STREAMER_API const char *streamer_metadata(const streamer_lease *lease, const char *key);

/* The model's digest as 32 hex digits; "" while it loads. Borrowed. */
STREAMER_API const char *streamer_digest(streamer_lease *lease);
STREAMER_API uint64_t streamer_generation(const streamer_lease *lease);

/* Whole segments: `data` is the base address in this process, `size` its bytes. */
STREAMER_API size_t streamer_segment_count(const streamer_lease *lease);
STREAMER_API int streamer_segment_get(const streamer_lease *lease, size_t i, const void **data, uint64_t *size);

/* *dlmanaged is a DLManagedTensor (DLPack 0.8 ABI): rank 1, uint8, the whole segment. The caller
 * owns it and calls its deleter, or hands it to a framework that does. It keeps the segment mapped
 * after streamer_detach(). Host segments are read-only unless attached STREAMER_ATTACH_PRIVATE. */
STREAMER_API int streamer_segment_dlpack(streamer_lease *lease, size_t segment, void **dlmanaged);

/* Asks the daemon: 0 while it holds the lease, STREAMER_ELOST once it does not (it restarted, and the
 * model did not survive or is another by now), STREAMER_EREVOKED once the model was unloaded by force
 * (the memory stays mapped and as it was, in the daemon's quarantine, until the lease is detached;
 * streamer_fd() becomes readable when this is told), STREAMER_EUNREACHABLE while there is no daemon. A lost
 * lease stays readable where the memory is the host's or came as a descriptor; of a GPU's memory by
 * cudaIpcMemHandle_t every call on the lease answers STREAMER_ELOST then. A lost lease is detached as
 * any other; the model is attached to anew. */
STREAMER_API int streamer_lease_check(streamer_lease *lease);

/* Ends the lease and unmaps; accepts NULL. */
STREAMER_API void streamer_detach(streamer_lease *lease);

#ifdef __cplusplus
}
#endif
#endif
