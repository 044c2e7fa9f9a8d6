/* SPDX-License-Identifier: Apache-2.0
 *
 * The source and pattern of a load: the first line is a source, the second a pattern of ranks, and the others are file
 * names for it. A canonical source stays unchanged, and ranks are complete.
 */
#include "daemon/base/text/secret.h"
#include "daemon/model/ranks.h"
#include "daemon/source/source.h"
#include "proto/codec.h"
#include "tests/fuzz/fuzz.h"

#define NAMES 64

static void check_name(const char *canonical)
{
        for (unsigned n = 0; n < 4; n++) {
                char *name = source_default_name(canonical, n);
                holds(name != NULL && name[0] != '\0' && codec_utf8(name, strlen(name)));
                free(name);
        }
        if (!source_is_local(canonical)) /* whose lane is that of a file system */
                holds(source_lane(canonical) != 0);
}

static void check_redacted(const char *source)
{
        char shown[REDACTED_SOURCE], *whole = redact_source_new(source);
        redact_source(shown, source);
        holds(whole != NULL && strncmp(whole, shown, strlen(shown)) == 0);
        holds(strlen(whole) < REDACTED_SOURCE ? strcmp(whole, shown) == 0 : strlen(shown) == REDACTED_SOURCE - 1);
        free(whole);
}

static void fuzz_source(const char *source)
{
        struct error error = {0};
        char *first = NULL, *second = NULL;
        check_redacted(source);
        if (source_canonical(source, &first, &error) == 0) {
                holds(codec_utf8(first, strlen(first)));
                holds(source_canonical(first, &second, &error) == 0 && strcmp(first, second) == 0);
                check_name(first);
        } else {
                holds(error.code < 0 && error.text[0] != '\0' && first == NULL);
        }
        free(first);
        free(second);
}

/* Each file is listed once, and each rank has one. */
static void check_ranks(const struct rank_file *files, size_t n, size_t n_names, size_t n_devices)
{
        bool seen[NAMES] = {false};
        holds(n > 0 && n <= n_names && files[0].rank == 0 && files[n - 1].rank == n_devices - 1);
        for (size_t i = 0; i < n; i++) {
                holds(i == 0 || files[i].rank - files[i - 1].rank <= 1);
                holds(files[i].file < n_names && !seen[files[i].file]);
                seen[files[i].file] = true;
        }
}

static void fuzz_ranks(const char *pattern, const char *const *names, size_t n)
{
        struct error error = {0};
        if (ranks_check_pattern(pattern, &error) < 0) {
                holds(error.text[0] != '\0');
                return;
        }
        for (size_t n_devices = 1; n_devices <= 4; n_devices++) {
                struct rank_file files[NAMES];
                size_t n_files;
                if (ranks_list(files, &n_files, names, n, pattern, n_devices, &error) == 0)
                        check_ranks(files, n_files, n, n_devices);
                else
                        holds(error.text[0] != '\0');
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        char *text = fuzz_copy(data, size, 1), *rest = text;
        const char *names[NAMES];
        size_t n = 0;
        fuzz_source(strsep(&rest, "\n"));
        const char *pattern = strsep(&rest, "\n");
        while (rest != NULL && n < NAMES)
                names[n++] = strsep(&rest, "\n");
        if (pattern != NULL)
                fuzz_ranks(pattern, names, n);
        free(text);
        return 0;
}
