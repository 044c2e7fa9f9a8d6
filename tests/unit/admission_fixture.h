/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixture of the admission tests: two devices of 10 MiB, models on them, and loads that request memory.
 */
#pragma once

#include "tests/unit/resident_fixture.h"

#include "daemon/resident/admission/admission.h"

#define BUDGET (10 * MiB)
#define MAX_BLOCKED 2
#define N_ASKS 8

static struct admission admission;

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

static void begin_admission(void)
{
        begin_with(2, BUDGET, 0);
        admission_init(&admission, &resident, MAX_BLOCKED);
}

static bool is_quiet(void)
{
        for (int i = 0; i < 2; i++)
                if (admission.devices[i].asked != admission.devices[i].answered)
                        return false;
        return !resident.capacity_changed.posted;
}

/* Nothing is lost: every byte is unused in the end. */
static void end_admission(void)
{
        for (size_t i = 0; i < n_asks; i++)
                admission_withdraw(&asks[i].request);
        for (int i = 0; i < 2; i++) {
                gate_open(&fakes[i].release);
                gate_open(&fakes[i].answer);
                __atomic_store_n(&fakes[i].ceiling, UINT64_MAX, __ATOMIC_SEQ_CST);
        }
        while (!list_empty(&resident.generations)) {
                drop_all();
                uv_run(&core_loop, UV_RUN_NOWAIT);
        }
        core_until(is_quiet());
        end();
        wake_drain(core_wake);
        ck_assert(list_empty(&admission.queue));
}

/* ---- resident models ---- */

static struct generation *resident_model(const char *name, int device, uint64_t bytes)
{
        return ready(allocated(loading_on(name, device), bytes));
}

static struct lease *lease_of(struct generation *g)
{
        return lease_new(&leases, process_of(PID_OF_NOBODY), g, NULL);
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
        FAILS_WITH(ask->error, ask->error.code, code, what);
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
