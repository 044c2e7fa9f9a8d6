/* SPDX-License-Identifier: Apache-2.0
 *
 * What the library exports for the Python package alone, which brings the library of its own release: no part of
 * streamer/client.h, and without a promise between releases. The functions that return an object are called with the
 * interpreter's lock held.
 */
#pragma once

#include "streamer/client.h"

typedef struct _object PyObject;

/* A capsule that releases the handle in *slot, if there is one by then; None: no memory. */
STREAMER_API PyObject *streamer_python_slot(unsigned kind, void ***slot);

/* As streamer_publish_begin(). *hopeless: 1 where it was refused, and would be however long one waits. */
STREAMER_API int streamer_python_begin(streamer_publication *publication, const uint64_t *bytes, size_t n,
                                       int *hopeless);

/* As streamer_publish_commit(); a publication that it released is in its slot no longer. */
STREAMER_API int streamer_python_commit(streamer_publication **publication, streamer_lease **lease);

/* Before the commit: what this process writes to the storages from now on is its own, and dropped by the next call and
 * by the commit. STREAMER_EUNSUPPORTED: on GPUs, and of hugetlb pages. After a failure some may be lent for writing. */
STREAMER_API int streamer_python_protect(streamer_publication *publication);

/* As streamer_publish_abort(), at once. */
STREAMER_API void streamer_python_abort(streamer_publication **publication);

/* Copies to host memory with two threads: one does not reach the memory's rate. */
STREAMER_API void streamer_python_copy(void *to, const void *from, size_t bytes);

/* The names of all tensors, in byte order; None: *code is the error. */
STREAMER_API PyObject *streamer_python_names(streamer_lease *lease, int *code);

#define STREAMER_PYTHON_BY_ARRIVAL 1
#define STREAMER_PYTHON_DIGESTS 2 /* else they are "" */
/* Rows, each (name, dtype, shape, bytes, digest, segment, offset, number), where number is the tensor's place in byte
 * order of the names: a list of up to n, from the place `first` in that order or in order of arrival. None: *code is
 * the error, STREAMER_EBUSY if one has not arrived; in order of arrival the list ends there. */
STREAMER_API PyObject *streamer_python_rows(streamer_lease *lease, size_t first, size_t n, int flags, int *code);

/* The row of a tensor; None: *code is the error. */
STREAMER_API PyObject *streamer_python_find(streamer_lease *lease, const char *name, int *code);

/* 0: more than `seen` tensors have arrived; else as streamer_tensor_next(). Called without the interpreter's lock. */
STREAMER_API int streamer_python_await(streamer_lease *lease, size_t seen, int timeout_ms);

/* Whether the connection lives, as far as is known without waiting: then a request is sent without waiting. */
STREAMER_API int streamer_python_alive(streamer_client *client);

/* How many have arrived. */
STREAMER_API size_t streamer_python_arrived(streamer_lease *lease);

/* streamer_python_tensor() of the tensor with this number. */
STREAMER_API PyObject *streamer_python_view(streamer_lease *lease, size_t number, unsigned flags, int *code);

/* As streamer_tensor_dlpack() and streamer_segment_dlpack(), in a capsule; None: *code is the error. */
STREAMER_API PyObject *streamer_python_tensor(streamer_lease *lease, const streamer_tensor *tensor, unsigned flags,
                                              int *code);
STREAMER_API PyObject *streamer_python_segment(streamer_lease *lease, size_t segment, unsigned flags, int *code);
