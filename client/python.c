/* SPDX-License-Identifier: Apache-2.0
 *
 * Ownership for the Python package, which calls the library through ctypes. A signal's exception may be raised between
 * any two bytecodes, so no handle may exist outside of an object whose destructor is C code: a capsule owns a slot
 * before a call stores a handle there, and a DLPack object is born in its capsule. The destructors run with the
 * interpreter's lock held.
 *
 * The interpreter's functions are found where the process has them, as by every extension module; elsewhere they are
 * NULL, and these calls fail.
 */
#include "client/python.h"

#include "client/dlpack.h"
#include "client/fault.h"

#include <stdbool.h>
#include <stdlib.h>

extern PyObject *PyCapsule_New(void *pointer, const char *name, void (*destructor)(PyObject *)) __attribute__((weak));
extern void *PyCapsule_GetPointer(PyObject *capsule, const char *name) __attribute__((weak));
extern PyObject *Py_BuildValue(const char *format, ...) __attribute__((weak));
extern int PyCapsule_IsValid(PyObject *capsule, const char *name) __attribute__((weak));

/* ctypes expects an object, or an exception that is set. */
static PyObject *none(void)
{
        return Py_BuildValue ? Py_BuildValue("") : NULL;
}

/* ---- handles ---- */

#define SLOT_NAME "streamerd.slot"

enum slot_kind { SLOT_CLIENT, SLOT_OP, SLOT_LEASE, SLOT_MEMORY, SLOT_PUBLICATION, SLOT_KINDS };

struct slot {
        void *handle; /* first: callers have its address */
        enum slot_kind kind;
};

static void release(enum slot_kind kind, void *handle)
{
        switch (kind) {
        case SLOT_CLIENT:
                streamer_close(handle);
                break;
        case SLOT_OP:
                streamer_op_free(handle);
                break;
        case SLOT_LEASE:
                streamer_detach(handle);
                break;
        case SLOT_PUBLICATION:
                streamer_publish_abort(handle);
                break;
        default:
                streamer_free(handle);
        }
}

static void slot_destroy(PyObject *capsule)
{
        struct slot *s = PyCapsule_GetPointer(capsule, SLOT_NAME);
        if (s->handle)
                release(s->kind, s->handle);
        free(s);
}

PyObject *streamer_python_slot(unsigned kind, void ***slot)
{
        struct slot *s = kind < SLOT_KINDS && PyCapsule_New && PyCapsule_GetPointer ? calloc(1, sizeof(*s)) : NULL;
        if (!s)
                return none();
        s->kind = (enum slot_kind)kind;
        PyObject *capsule = PyCapsule_New(s, SLOT_NAME, slot_destroy);
        if (!capsule)
                free(s);
        else
                *slot = &s->handle;
        return capsule;
}

int streamer_python_commit(streamer_publication **publication, streamer_lease **lease)
{
        int r = streamer_publish_commit(*publication, lease);
        if (r == 0)
                *publication = NULL;
        return r;
}

void streamer_python_abort(streamer_publication **publication)
{
        streamer_publication *aborted = *publication;
        *publication = NULL;
        streamer_publish_abort(aborted);
}

/* ---- DLPack ---- */

#define VERSIONED "dltensor_versioned"
#define UNVERSIONED "dltensor"

/* A framework that takes the object renames its capsule. */
static void object_destroy(PyObject *capsule)
{
        if (PyCapsule_IsValid(capsule, VERSIONED)) {
                struct dl_managed_tensor_versioned *object = PyCapsule_GetPointer(capsule, VERSIONED);
                object->deleter(object);
        } else if (PyCapsule_IsValid(capsule, UNVERSIONED)) {
                struct dl_managed_tensor *object = PyCapsule_GetPointer(capsule, UNVERSIONED);
                object->deleter(object);
        }
}

/* NULL: the interpreter has no memory, which is its exception. */
static PyObject *capsule_of_consume(void *object, unsigned flags)
{
        bool versioned = !(flags & STREAMER_DLPACK_UNVERSIONED);
        PyObject *capsule = PyCapsule_New(object, versioned ? VERSIONED : UNVERSIONED, object_destroy);
        if (capsule)
                return capsule;
        if (versioned)
                ((struct dl_managed_tensor_versioned *)object)->deleter(object);
        else
                ((struct dl_managed_tensor *)object)->deleter(object);
        return NULL;
}

static int check_interpreter(void)
{
        return PyCapsule_New && PyCapsule_GetPointer && PyCapsule_IsValid
                       ? 0
                       : fault_set(NULL, STREAMER_EUNSUPPORTED, "the process has no Python interpreter");
}

PyObject *streamer_python_tensor(streamer_lease *lease, const streamer_tensor *tensor, unsigned flags, int *code)
{
        void *object;
        *code = check_interpreter();
        if (*code == 0)
                *code = streamer_tensor_dlpack(lease, tensor, flags, &object);
        return *code == 0 ? capsule_of_consume(object, flags) : none();
}

PyObject *streamer_python_segment(streamer_lease *lease, size_t segment, unsigned flags, int *code)
{
        void *object;
        *code = check_interpreter();
        if (*code == 0)
                *code = streamer_segment_dlpack(lease, segment, flags, &object);
        return *code == 0 ? capsule_of_consume(object, flags) : none();
}
