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

#include "client/args.h"
#include "client/dlpack.h"
#include "client/fault.h"
#include "client/lease.h"
#include "client/util.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

extern PyObject *PyCapsule_New(void *pointer, const char *name, void (*destructor)(PyObject *)) __attribute__((weak));
extern void *PyCapsule_GetPointer(PyObject *capsule, const char *name) __attribute__((weak));
extern PyObject *Py_BuildValue(const char *format, ...) __attribute__((weak));
extern int PyCapsule_IsValid(PyObject *capsule, const char *name) __attribute__((weak));
extern PyObject *PyList_New(ssize_t n) __attribute__((weak));
extern int PyList_SetItem(PyObject *list, ssize_t i, PyObject *item) __attribute__((weak));
extern PyObject *PyTuple_New(ssize_t n) __attribute__((weak));
extern int PyTuple_SetItem(PyObject *tuple, ssize_t i, PyObject *item) __attribute__((weak));
extern PyObject *PyUnicode_DecodeUTF8(const char *text, ssize_t len, const char *errors) __attribute__((weak));
extern PyObject *PyUnicode_InternFromString(const char *text) __attribute__((weak));
extern PyObject *PyLong_FromUnsignedLongLong(unsigned long long value) __attribute__((weak));
extern void Py_IncRef(PyObject *object) __attribute__((weak));
extern void Py_DecRef(PyObject *object) __attribute__((weak));

/* ctypes expects an object, or an exception that is set. */
static PyObject *none(void)
{
        return Py_BuildValue ? Py_BuildValue("") : NULL;
}

/* ---- handles ---- */

#define SLOT_NAME "streamerd.slot"

#define COPY_TWO (16u << 20) /* bytes that are worth a second thread */

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

struct copy {
        unsigned char *to;
        const unsigned char *from;
        size_t bytes;
};

static void *copy_run(void *arg)
{
        const struct copy *copy = arg;
        memcpy(copy->to, copy->from, copy->bytes);
        return NULL;
}

void streamer_python_copy(void *to, const void *from, size_t bytes)
{
        size_t half = bytes / 2;
        struct copy rest = {(unsigned char *)to + half, (const unsigned char *)from + half, bytes - half};
        pthread_t thread;
        bool two = bytes >= COPY_TWO && pthread_create(&thread, NULL, copy_run, &rest) == 0;
        memcpy(to, from, two ? half : bytes);
        if (two)
                pthread_join(thread, NULL);
}

/* ---- rows ----
 *
 * One call for each tensor costs some microseconds, of which a batch takes all but a few hundred nanoseconds. */

static int check_interpreter(void)
{
        return PyCapsule_New && PyCapsule_GetPointer && PyCapsule_IsValid && PyList_New && PyList_SetItem &&
                               PyTuple_New && PyTuple_SetItem && PyUnicode_DecodeUTF8 && PyUnicode_InternFromString &&
                               PyLong_FromUnsignedLongLong && Py_IncRef && Py_DecRef
                       ? 0
                       : fault_set(NULL, STREAMER_EUNSUPPORTED, "the process has no Python interpreter");
}

static PyObject *discard(PyObject *object)
{
        if (object)
                Py_DecRef(object);
        return NULL;
}

/* Of items that were made for it, some of which may be NULL: then there is no memory. */
static PyObject *tuple_of_consume(PyObject *const *items, size_t n)
{
        PyObject *tuple = PyTuple_New((ssize_t)n);
        bool whole = tuple != NULL;
        for (size_t i = 0; i < n; i++) {
                whole = whole && items[i];
                if (tuple && items[i])
                        PyTuple_SetItem(tuple, (ssize_t)i, items[i]);
                else
                        discard(items[i]);
        }
        return whole ? tuple : discard(tuple);
}

static PyObject *shape_of(const streamer_tensor *t)
{
        PyObject *shape = PyTuple_New((ssize_t)t->rank);
        for (uint32_t i = 0; shape && i < t->rank; i++) {
                PyObject *n = PyLong_FromUnsignedLongLong(t->shape[i]);
                if (n)
                        PyTuple_SetItem(shape, (ssize_t)i, n);
                else
                        shape = discard(shape);
        }
        return shape;
}

static PyObject *digest_of(const streamer_tensor *t)
{
        static const char digits[] = "0123456789abcdef";
        char text[2 * sizeof(t->digest)];
        for (size_t i = 0; i < sizeof(t->digest); i++) {
                text[2 * i] = digits[t->digest[i] >> 4];
                text[2 * i + 1] = digits[t->digest[i] & 15];
        }
        return PyUnicode_DecodeUTF8(text, sizeof(text), NULL);
}

#define KNOWN_DTYPES 32 /* numbers whose names are made once a list */

struct listing {
        streamer_lease *lease;
        bool digests; /* else "", as a digest costs as much as three other items */
        int *code;
        PyObject *dtypes[KNOWN_DTYPES];
};

static PyObject *dtype_of(struct listing *l, const streamer_tensor *t)
{
        if (t->dtype >= KNOWN_DTYPES)
                return PyUnicode_InternFromString(t->dtype_name);
        PyObject **known = &l->dtypes[t->dtype];
        *known = *known ?: PyUnicode_InternFromString(t->dtype_name);
        if (*known)
                Py_IncRef(*known);
        return *known;
}

static void listing_deinit(struct listing *l)
{
        for (size_t i = 0; i < KNOWN_DTYPES; i++)
                if (l->dtypes[i])
                        Py_DecRef(l->dtypes[i]);
}

/* NULL: *l->code is the error, or 0, and the exception is the interpreter's. */
static PyObject *row_of(struct listing *l, uint64_t i)
{
        streamer_tensor t = STREAMER_TENSOR_INIT;
        *l->code = tensor_get(l->lease, i, &t);
        if (*l->code != 0)
                return NULL;
        PyObject *const items[] = {PyUnicode_DecodeUTF8(t.name, (ssize_t)strlen(t.name), NULL),
                                   dtype_of(l, &t),
                                   shape_of(&t),
                                   PyLong_FromUnsignedLongLong(t.bytes),
                                   l->digests ? digest_of(&t) : PyUnicode_DecodeUTF8("", 0, NULL),
                                   PyLong_FromUnsignedLongLong(t.segment),
                                   PyLong_FromUnsignedLongLong(t.offset),
                                   PyLong_FromUnsignedLongLong(i)};
        return tuple_of_consume(items, sizeof(items) / sizeof(items[0]));
}

/* A list of n items, which make() makes. */
static PyObject *list_of(struct listing *l, uint64_t first, uint64_t n,
                         PyObject *(*make)(struct listing *l, uint64_t i))
{
        PyObject *list = PyList_New((ssize_t)n);
        for (uint64_t i = 0; list && i < n; i++) {
                PyObject *item = make(l, first + i);
                if (item)
                        PyList_SetItem(list, (ssize_t)i, item);
                else
                        list = discard(list);
        }
        listing_deinit(l);
        return list || *l->code == 0 ? list : none();
}

static PyObject *arrived_row_of(struct listing *l, uint64_t position)
{
        uint64_t i;
        *l->code = lease_arrival_get(l->lease, position, &i);
        return *l->code == 0 ? row_of(l, i) : NULL;
}

static PyObject *name_of(struct listing *l, uint64_t i)
{
        const char *name;
        *l->code = streamer_tensor_name(l->lease, i, &name);
        return *l->code == 0 ? PyUnicode_DecodeUTF8(name, (ssize_t)strlen(name), NULL) : NULL;
}

PyObject *streamer_python_names(streamer_lease *lease, int *code)
{
        struct listing l = {.lease = lease, .code = code};
        *code = check_interpreter() ?: args_lease(lease, "python_names");
        return *code == 0 ? list_of(&l, 0, lease->manifest.header->n_records, name_of) : none();
}

PyObject *streamer_python_rows(streamer_lease *lease, size_t first, size_t n, int flags, int *code)
{
        bool by_arrival = flags & STREAMER_PYTHON_BY_ARRIVAL;
        struct listing l = {.lease = lease, .digests = flags & STREAMER_PYTHON_DIGESTS, .code = code};
        *code = check_interpreter() ?: args_lease(lease, "python_rows");
        if (*code != 0)
                return none();
        uint64_t end = by_arrival ? lease_n_arrived(lease) : lease->manifest.header->n_records;
        uint64_t left = first < end ? end - first : 0;
        return list_of(&l, first, n < left ? n : left, by_arrival ? arrived_row_of : row_of);
}

PyObject *streamer_python_find(streamer_lease *lease, const char *name, int *code)
{
        uint64_t i = 0;
        *code = check_interpreter() ?: args_lease(lease, "python_find") ?: tensor_number(lease, name, &i);
        struct listing l = {.lease = lease, .digests = true, .code = code};
        PyObject *row = *code == 0 ? row_of(&l, i) : NULL;
        listing_deinit(&l);
        return row || *code == 0 ? row : none();
}

int streamer_python_await(streamer_lease *lease, size_t seen, int timeout_ms)
{
        return args_lease(lease, "python_await") ?: lease_await(lease, seen, timeout_ms);
}

size_t streamer_python_arrived(streamer_lease *lease)
{
        return args_lease(lease, "python_arrived") == 0 ? (size_t)lease_n_arrived(lease) : 0;
}

/* ---- connections ---- */

int streamer_python_alive(streamer_client *client)
{
        if (args_client(client, "python_alive") != 0)
                return 0;
        lock_scope(&client->lock);
        channel_poll(client);
        return client->dead == 0;
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

PyObject *streamer_python_view(streamer_lease *lease, size_t number, unsigned flags, int *code)
{
        streamer_tensor t = STREAMER_TENSOR_INIT;
        *code = streamer_tensor_get(lease, number, &t);
        return *code == 0 ? streamer_python_tensor(lease, &t, flags, code) : none();
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
