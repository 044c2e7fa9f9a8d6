/* SPDX-License-Identifier: Apache-2.0
 *
 * The store of the tests of az:// is one for clients that are not ours: it accepts their signatures, and they read its
 * lists, pages and ranges.
 */
#include "tests/lib/azure_store.h"
#include "tests/lib/suite.h"

static struct azure_store store;

static const char *python(void)
{
        const char *build = getenv("STREAMERD_BUILD");
        return format_text("%s/venv-clouds/bin/python", build != NULL ? build : "build");
}

static const char *missing(void)
{
        return access(python(), X_OK) == 0 ? NULL : "Azure's clients are not installed";
}

static char *content(void)
{
        char *bytes = must_alloc(5000);
        for (int i = 0; i < 5000; i++)
                bytes[i] = (char)(i * 7);
        return bytes;
}

static void begin(void)
{
        azure_store_start(&store, 10);
        file_write(suite_path("bytes"), content(), 5000);
        for (int i = 0; i < 25; i++)
                azure_store_do(&store, "put\tmodels\tclients/n%02d\t/dev/null", i);
        azure_store_do(&store, "put\tmodels\tclients/a b+\xc3\xbc.bin\t%s", suite_path("bytes"));
}

static void end(void)
{
        azure_store_stop(&store);
}

static const char *const clients[] = {"azure-storage-blob", "adlfs", "obstore", "rclone"};

FIXTURE(.all = {begin, end}, .unavailable = missing, .timeout = 120);

TEST(a_client_lists_and_reads, EACH(clients))
{
        char *out, *names = format_text("clients/a b+\xc3\xbc.bin"), *hex = format_text("%s", "");
        const unsigned char *bytes = (unsigned char *)content();
        for (int i = 0; i < 25; i++)
                names = format_text("%s,clients/n%02d", names, i);
        for (int i = 1000; i < 1100; i++)
                hex = format_text("%s%02x", hex, bytes[i]);
        int r = shell(&out, "%s tests/lib/azure_clients.py %s %s %s %s '%s' 2>&1", python(), clients[_i],
                      store.endpoint, AZURE_ACCOUNT, AZURE_KEY, AZURE_SAS);
        ck_assert_msg(r == 0, "%s", out);
        ck_assert_str_eq(out, format_text("%s %s\n%s %s\n", names, hex, names, hex));
}
