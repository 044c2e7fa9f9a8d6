/* SPDX-License-Identifier: Apache-2.0
 *
 * The findings of doctor: see doctor_checks.h.
 */
#include "tests/lib/doctor_checks.h"
#include "tests/lib/streamerctl.h"
#include "tests/lib/fake_cuda/state.h"
#include "tests/lib/suite.h"

json_t *doctor_said;
int doctor_code;

void doctor_ask(void)
{
        struct ctl result;
        json_error_t error;

        ctl(&result, test_daemon.socket, "doctor", "--json", NULL);
        doctor_said = json_loads(result.out, 0, &error);
        ck_assert_msg(doctor_said != NULL, "%s: %s%s", error.text, result.out, result.err);
        doctor_code = result.code;
        ctl_free(&result);
}

void doctor_found(const char *result, const char *check, const char *part)
{
        const json_t *row;
        for (size_t i = 0; (row = json_array_get(json_object_get(doctor_said, "checks"), i)); i++) {
                if (strcmp(json_text(row, "check"), check) != 0 || !strstr(json_text(row, "text"), part))
                        continue;
                ck_assert_str_eq(json_text(row, "result"), result);
                ck_assert_int_eq(json_object_get(row, "advice") == NULL, strcmp(result, "ok") == 0);
                return;
        }
        ck_abort_msg("no %s with '%s' in %s", check, part, json_dumps(doctor_said, 0));
}

static bool no_probe_listed(streamer_client *c)
{
        json_auto_t *list = client_call(c, "list", NULL);
        size_t n = 0;
        const json_t *model;
        for (size_t i = 0; (model = json_array_get(json_object_get(list, "models"), i)); i++)
                n += strncmp(json_text(model, "name"), "probe:", 6) == 0;
        return n == 0;
}

void doctor_check_no_leak(streamer_client *c, uint64_t used)
{
        client_wait_leases(c, 0);
        client_wait_used(c, used);
        AWAIT(no_probe_listed(c));
}

const char *doctor_driver(void)
{
        static char driver[PATH_SIZE];
        fake_library("libcuda.so.1", driver, sizeof(driver));
        return driver;
}
