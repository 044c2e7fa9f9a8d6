/* SPDX-License-Identifier: Apache-2.0
 *
 * The metrics as Prometheus' own tool sees them. metrics_http_test compares them with those over HTTP.
 */
#include "tests/lib/fixture.h"
#include "tests/lib/streamerctl.h"
#include "tests/lib/suite.h"

static const char *promtool_unavailable(void)
{
        return command_exists("promtool") ? NULL : "promtool is not installed";
}

FIXTURE(.all = {fixture_begin_default, fixture_end}, .unavailable = promtool_unavailable);

TEST(promtool_reports_no_problem)
{
        char *said, *metrics = ctl_says(test_daemon.socket, 0, "", "metrics", NULL);
        int status = shell(&said, "promtool check metrics <%s", suite_file("metrics.txt", metrics));
        ck_assert_msg(status == 0 && *said == '\0', "%s", said);
}

TEST(the_alerts_are_rules)
{
        char *said;
        int status = shell(&said, "promtool check rules config/alerts.yaml");
        ck_assert_msg(status == 0, "%s", said);
}
