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
        if (!command_exists("promtool"))
                SKIP("promtool is not installed");
        struct http_exchange v;
        http_exchange_request(&v, metrics_address, "GET", "/metrics");
        char *said;
        int status = shell(&said, "promtool check metrics <%s", suite_file("metrics.txt", v.body));
        ck_assert_msg(status == 0 && *said == '\0', "%s", said);
}

TEST(the_alerts_are_rules)
{
        if (!command_exists("promtool"))
                SKIP("promtool is not installed");
        char *said;
        int status = shell(&said, "promtool check rules config/alerts.yaml");
        ck_assert_msg(status == 0, "%s", said);
}
