/* SPDX-License-Identifier: Apache-2.0
 *
 * doctor: checks, each of one line, and what to change where one is not well. What a process of this
 * user meets here is compared with what the daemon has been granted there; then every device is tried.
 *
 *   doctor.c         what is asked in which order, and how it is printed
 *   doctor_self.c    this process: the socket, its namespaces, its driver and GPUs
 *   doctor_daemon.c  the daemon's facts
 *   doctor_probe.c   a model on each device, attached to and read back
 */
#pragma once

#include "client/streamerctl/ctl.h"

#include <string.h>

enum finding { FINDING_OK, FINDING_WARN, FINDING_FAIL };

struct doctor {
        struct ctl *ctl;
        json_t *checks;    /* [{check, result, text, advice?}] */
        json_t *facts;     /* of the daemon; NULL without one */
        unsigned count[3]; /* by finding */
};

/* `advice`: what to change; NULL where all is well. */
void doctor_add(struct doctor *doctor, enum finding finding, const char *check, const char *advice, const char *format,
                ...) __attribute__((format(printf, 5, 6)));

/* The daemon's first device with this member; NULL: none. */
static inline const json_t *doctor_device(const struct doctor *doctor, const char *key, const char *value)
{
        const json_t *d;
        for (size_t i = 0; (d = json_array_get(json_object_get(doctor->facts, "devices"), i)); i++)
                if (strcmp(json_str(d, key), value) == 0)
                        return d;
        return NULL;
}

static inline bool doctor_has_cuda(const struct doctor *doctor)
{
        return doctor_device(doctor, "kind", "cuda") != NULL;
}

/* ---- doctor_self.c ---- */

/* Why a connection could not be made, and what to do; `text` is the library's. */
void self_check_socket(struct doctor *doctor, const char *text);
uint64_t self_namespace(const char *kind); /* "pid" or "net": its inode; 0: unknown */
/* Whether this process can use CUDA, which it must where the daemon has GPUs. */
void self_check_cuda(struct doctor *doctor);

/* ---- doctor_daemon.c, doctor_probe.c ---- */

void daemon_check(struct doctor *doctor);
void probe_check(struct doctor *doctor);
