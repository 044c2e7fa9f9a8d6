/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixture of the admission tests: two devices of 10 MiB, models on them, and loads that request memory.
 */
#ifndef TESTS_UNIT_ADMISSION_FIXTURE_H
#define TESTS_UNIT_ADMISSION_FIXTURE_H

#include "tests/lib/core.h"

#include "daemon/base/util.h"
#include "daemon/resident/admission/admission.h"
#include "daemon/resident/lease.h"

#include <sys/eventfd.h>

#define BUDGET (10 * MiB)
#define MAX_BLOCKED 2
#define N_ASKS 8

static struct fake_device fakes[2];
static struct device *devices[2];
static struct resident resident;
static struct admission admission;
static struct leases leases;

/* A request for device memory. */
struct ask {
        struct admission_request request;
        struct admission_part parts[2];
        unsigned answers;
        struct error error;
        unsigned turn; /* of all answers */
};
static struct ask asks[N_ASKS];
static size_t n_asks;
static unsigned turns;

#define PID_OF_NOBODY (1 << 30) /* more than any can be */

static int watch(struct process *process)
{
        (void)process;
        return 0;
}

static void unwatch(struct process *process)
{
        (void)process;
}

static void begin(void)
{
        for (unsigned i = 0; i < 2; i++) {
                fake_device_init(&fakes[i], i == 0 ? "first" : "second", BUDGET, false);
                fakes[i].device.number = i;
                devices[i] = &fakes[i].device;
        }
        resident_init(&resident, core_wake, devices, 2, 0);
        admission_init(&admission, &resident, core_wake, MAX_BLOCKED);
        leases_init(&leases);
        leases.watch = watch;
        leases.unwatch = unwatch;
}

static void drop_all(void)
{
        list_each_item_safe (struct generation, g, &resident.generations, link) {
                if (g->state == GENERATION_LOADING) {
                        generation_fail(g, &(struct error){.code = STREAMER_ECANCELED});
                        generation_put(g);
                } else if (!list_empty(&g->names)) {
                        generation_drop_name(g, generation_name(g));
                }
        }
}

static bool is_quiet(void)
{
        for (int i = 0; i < 2; i++)
                if (admission.devices[i].asked != admission.devices[i].answered)
                        return false;
        return !admission.item.posted;
}

/* Nothing is lost: every byte is unused in the end. */
static void end(void)
{
        for (size_t i = 0; i < n_asks; i++)
                admission_withdraw(&asks[i].request);
        for (int i = 0; i < 2; i++) {
                gate_open(&fakes[i].release);
                gate_open(&fakes[i].answer);
                __atomic_store_n(&fakes[i].ceiling, UINT64_MAX, __ATOMIC_SEQ_CST);
        }
        while (!resident_empty(&resident)) {
                drop_all();
                uv_run(&core_loop, UV_RUN_NOWAIT);
        }
        core_until(is_quiet());
        for (int i = 0; i < 2; i++) {
                ck_assert_uint_eq(fakes[i].device.used, 0);
                fake_device_deinit(&fakes[i]);
        }
        wake_drain(core_wake);
        ck_assert(list_empty(&admission.queue));
}

/* ---- resident models ---- */

static struct generation *resident_model(const char *name, int device, uint64_t bytes)
{
        struct error error = {0};
        struct generation *g = generation_new(&resident, name, "/models/x", devices[device], 0);
        generation_assign_number(g);
        ck_assert_int_eq(generation_charge(g, bytes, &error), 0);
        ck_assert_int_eq(devices[device]->ops->alloc(devices[device], bytes, &g->segments[0], &error), 0);
        g->n_segments = 1;
        generation_ready(g);
        generation_put(g);
        return g;
}

static struct lease *lease_of(struct generation *g)
{
        struct process *process =
                leases_process_consume_fd(&leases, PID_OF_NOBODY, 0, must(eventfd(0, EFD_CLOEXEC)), 0);
        return lease_new(&leases, process, g, NULL);
}

static bool is_ready(const char *name)
{
        return resident_ready(&resident, name) != NULL;
}

/* ---- callers ---- */

static void on_answer(struct admission_request *request, const struct error *error)
{
        struct ask *ask = container_of(request, struct ask, request);
        ask->answers++;
        ask->error = *error;
        ask->turn = ++turns;
}

static struct admission_part part_of(const char *name, int device, uint64_t bytes)
{
        struct generation *g = generation_new(&resident, name, "/models/y", devices[device], 0);
        return (struct admission_part){devices[device], bytes, g};
}

/* A load of this name that may evict; not sent yet. */
static struct ask *load_of(const char *name, int device, uint64_t bytes)
{
        struct ask *ask = &asks[n_asks++];
        ask->parts[0] = part_of(name, device, bytes);
        generation_assign_number(ask->parts[0].generation);
        ask->request =
                (struct admission_request){.parts = ask->parts, .n_parts = 1, .evict = true, .answered = on_answer};
        list_init(&ask->request.link);
        return ask;
}

static struct ask *asked(struct ask *ask)
{
        admission_submit(&admission, &ask->request);
        ck_assert_uint_eq(ask->answers, 0);
        return ask;
}

/* Runs the loop until admission has no work left. */
static void quiet(void)
{
        core_until(is_quiet());
}

static void granted(struct ask *ask)
{
        core_until(ask->answers > 0);
        ck_assert_msg(ask->error.code == 0, "%s", ask->error.text);
        ck_assert_uint_eq(ask->parts[0].generation->charged, ask->parts[0].bytes);
}

static void refused(struct ask *ask, int code, const char *what)
{
        core_until(ask->answers > 0);
        ck_assert_int_eq(ask->error.code, code);
        ck_assert_msg(strstr(ask->error.text, what) != NULL, "%s", ask->error.text);
}

static void waits(struct ask *ask)
{
        quiet();
        ck_assert_uint_eq(ask->answers, 0);
}

static struct ask *patient(struct ask *ask, uint64_t priority)
{
        ask->request.wait = true;
        ask->request.priority = priority;
        return asked(ask);
}

#endif
