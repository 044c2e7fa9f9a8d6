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

/* As streamer_publish_commit(); a publication that it released is in its slot no longer. */
STREAMER_API int streamer_python_commit(streamer_publication **publication, streamer_lease **lease);

/* As streamer_publish_abort(), at once. */
STREAMER_API void streamer_python_abort(streamer_publication **publication);

/* As streamer_tensor_dlpack() and streamer_segment_dlpack(), in a capsule; None: *code is the error. */
STREAMER_API PyObject *streamer_python_tensor(streamer_lease *lease, const streamer_tensor *tensor, unsigned flags,
                                              int *code);
STREAMER_API PyObject *streamer_python_segment(streamer_lease *lease, size_t segment, unsigned flags, int *code);
