/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists, headers, refusals and credentials of Google Cloud Storage and Azure. In an accepted page every object is
 * complete; errors of credentials contain none of their text.
 */
#include "daemon/source/azure/azure.h"
#include "daemon/source/gcs/gcs.h"
#include "daemon/source/store/fault.h"
#include "daemon/source/store/json_values.h"
#include "daemon/source/store/jwt.h"
#include "tests/fuzz/fuzz.h"

static void fuzz_page(bool azure, const uint8_t *data, size_t size, bool sidecars)
{
        char *text = fuzz_copy(data, size, 1);
        char *next;
        struct error error = {0};
        struct listing list = {.shown = "fuzz", .sidecars = sidecars};
        int r = azure ? azure_page_parse(&next, text, size, "", &list, &error)
                      : gcs_page_parse(&next, text, size, "", &list, &error);
        if (r < 0)
                holds(error.code < 0 && next == NULL);
        for (size_t i = 0; i < list.n; i++)
                holds(list.v[i].name[0] != '\0' && list.v[i].tag != NULL);
        listing_deinit(&list);
        free(next);
        free(text);
}

static void fuzz_fault(const uint8_t *data, size_t size)
{
        char *text = fuzz_copy(data, size, 1);
        struct store_fault fault;
        store_fault_parse_json(&fault, text, size);
        holds(strlen(fault.code) < sizeof(fault.code) && strlen(fault.message) < sizeof(fault.message));
        free(text);
}

static void fuzz_values(const uint8_t *data, size_t size)
{
        char *text = fuzz_copy(data, size, 1);
        struct json_values values;
        if (json_values_init(&values, text, size))
                for (size_t i = 0; i < values.n; i++)
                        holds(values.v[i].path != NULL && values.v[i].text != NULL);
        holds(values.n <= JSON_VALUES_MAX);
        json_values_deinit(&values);
        free(text);
}

static void fuzz_texts(const uint8_t *data, size_t size)
{
        char *text = fuzz_copy(data, size, 1), note[JWT_NOTE];
        uint32_t crc;
        char *value = NULL;
        struct error error;
        gcs_crc32c(text, &crc);
        holds(azure_sas_expires(text) >= 0);
        holds(azure_connection_get(text, "AccountKey", &value, &error) == 0);
        free(value);
        holds(strlen(jwt_expired_note(text, note)) < JWT_NOTE);
        char *quoted = json_quote(text);
        holds(quoted != NULL && quoted[0] == '"');
        free(quoted);
        free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        fuzz_page(false, data, size, false);
        fuzz_page(false, data, size, true);
        fuzz_page(true, data, size, false);
        fuzz_page(true, data, size, true);
        fuzz_fault(data, size);
        fuzz_values(data, size);
        fuzz_texts(data, size);
        return 0;
}
