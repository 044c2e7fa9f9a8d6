/* SPDX-License-Identifier: Apache-2.0
 *
 * AWS profile files, and JSON replies of credential endpoints and of the Hub: accepted as a whole, or refused with an
 * error that contains none of their text.
 */
#include "daemon/source/aws/aws_config.h"
#include "daemon/source/aws/aws_answer.h"
#include "daemon/source/hf/hf.h"
#include "tests/fuzz/fuzz.h"

static void fuzz_ini(const uint8_t *data, size_t size)
{
        struct aws_config config = {.n = 0};
        struct error error = {0};
        struct text text;
        holds(text_new(&text, size, "fuzz", &error) == 0);
        if (size > 0)
                memcpy(text.data, data, size);
        if (aws_config_parse_consume(&config, AWS_CREDENTIALS, text, "fuzz", &error) == 0) {
                for (size_t i = 0; i < config.n; i++) {
                        holds(config.entries[i].key != NULL);
                        config.profile = (char *)(uintptr_t)config.entries[i].section;
                        holds(aws_config_has_profile(&config));
                }
                config.profile = NULL;
        } else {
                holds(error.code < 0);
        }
        aws_config_deinit(&config);
}

static void fuzz_keys(const uint8_t *data, size_t size)
{
        char *text = fuzz_copy(data, size, 0);
        struct credential keys = {.access = NULL};
        struct error error = {0};
        if (aws_keys_parse_json(&keys, text, size, "fuzz", &error) == 1)
                holds(keys.access[0] != '\0' && strpbrk(keys.access, "\r\n") == NULL);
        credential_deinit(&keys);
        free(text);
}

static void fuzz_hub(const uint8_t *data, size_t size, bool sidecars)
{
        char *text = fuzz_copy(data, size, 0), commit[HF_COMMIT];
        struct listing list = {.shown = "fuzz", .sidecars = sidecars};
        struct error error = {0};
        if (hf_reply_parse(text, size, "", commit, &list, &error) == 0)
                holds(strspn(commit, "0123456789abcdef") == strlen(commit) && commit[0] != '\0');
        else
                holds(error.code < 0);
        for (size_t i = 0; i < list.n; i++)
                holds(list.v[i].name[0] != '\0' && list.v[i].tag != NULL);
        listing_deinit(&list);
        free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        fuzz_ini(data, size);
        fuzz_keys(data, size);
        fuzz_hub(data, size, false);
        fuzz_hub(data, size, true);
        return 0;
}
