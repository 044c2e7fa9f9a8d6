/* SPDX-License-Identifier: Apache-2.0
 *
 * The metrics as Prometheus' own tool sees them.
 */
#include "tests/lib/fixture.h"
#include "tests/lib/http_exchange.h"
#include "tests/lib/suite.h"

static char metrics_address[PATH_SIZE];

static void begin(void)
{
        snprintf(metrics_address, sizeof(metrics_address), "unix:%s", suite_path("metrics"));
        fixture_begin((const char *const[]){"--device", "host=256MiB", "--metrics-listen", metrics_address, NULL});
}

FIXTURE(.all = {begin, fixture_end});

TEST(promtool_reports_no_problem)
{
        if (system("command -v promtool >/dev/null") != 0)
                SKIP("promtool is not installed");
        struct http_exchange v;
        http_exchange_request(&v, metrics_address, "GET", "/metrics");
        char *file = suite_path("metrics.txt"), *command = format_text("promtool check metrics <%s 2>&1", file);
        file_write(file, v.body, strlen(v.body));
        char said[4096] = "";
        FILE *f = popen(command, "r");
        size_t n = fread(said, 1, sizeof(said) - 1, f);
        int status = pclose(f);
        ck_assert_msg(status == 0 && n == 0, "%s", said);
}
