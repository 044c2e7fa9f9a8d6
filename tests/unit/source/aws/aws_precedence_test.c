/* SPDX-License-Identifier: Apache-2.0
 *
 * Which of AWS's variables and shared files decide provider, region and endpoint: as in botocore, for random sets of
 * them.
 */
#include "tests/unit/aws_fixture.h"

#include "daemon/source/s3/endpoint.h"

#define SETS 200

/* A container's credentials, and those of a role or a web identity. */
static void answer(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        if (strcmp(request->method, "GET") == 0)
                answer_json(reply);
        else
                answer_xml(reply);
}

/* "environment E": the provider, and the access key where it is in a variable or file. */
static const char *provider(void)
{
        if (get() != 0)
                return "-";
        if (strncmp(keys.origin, "environment", 11) == 0 || strncmp(keys.origin, "profile", 7) == 0)
                return format_text("%.*s %s", (int)strcspn(keys.origin, " "), keys.origin, keys.access);
        static const char *const kinds[] = {"role", "web identity", "container endpoint"};
        for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
                if (strncmp(keys.origin, kinds[i], strlen(kinds[i])) == 0)
                        return kinds[i];
        return keys.origin;
}

static void clear_variables(void)
{
        for (char **entry = environ; *entry != NULL;)
                if (strncmp(*entry, "AWS_", 4) == 0)
                        unsetenv(format_text("%.*s", (int)strcspn(*entry, "="), *entry)); /* moves the others up */
                else
                        entry++;
}

static void assert_decides(char *line, size_t set)
{
        char *fields[5];
        for (size_t i = 0; i < ARRAY_SIZE(fields); i++)
                fields[i] = strsep(&line, "\t\n");
        clear_variables();
        for (char *variable; (variable = strsep(&fields[0], " ")) != NULL;)
                putenv(variable);
        struct s3_endpoint_opts opts = {.profile = fields[1]};
        struct s3_endpoints *endpoints;
        ck_assert_int_eq(s3_endpoints_new(&endpoints, &opts, NULL, 0, NULL, &error), 0);
        const struct s3_endpoint *endpoint = s3_endpoints_find(endpoints, "s3://bucket/key");
        open_with(&(struct aws_credentials_opts){.profile = fields[1]});
        ck_assert_msg(strcmp(provider(), fields[2]) == 0, "set %zu: %s, not %s (%s)", set, provider(), fields[2],
                      error.text);
        ck_assert_msg(strcmp(filled(endpoint->region) ?: "-", fields[3]) == 0, "set %zu: %s, not %s", set,
                      endpoint->region, fields[3]);
        if (strcmp(fields[4], "?") != 0)
                ck_assert_msg(strcmp(endpoint->url ?: "-", fields[4]) == 0, "set %zu: %s, not %s", set, endpoint->url,
                              fields[4]);
        credentials = renewal_free(credentials);
        s3_endpoints_free(endpoints);
}

FIXTURE(.each = {begin, end}, .timeout = 60);

TEST(the_same_setting_decides_as_in_botocore)
{
        char *line = NULL;
        size_t size = 0;
        if (system("python3 -c 'import botocore' >/dev/null 2>&1") != 0)
                SKIP("python3-botocore is not installed");
        serve(answer);
        file_write(suite_path("jwt"), "a.b", 3);
        FILE *answers = popen(
                format_text("python3 tests/lib/aws_precedence.py %s %s %d", suite_folder(), service.url, SETS), "r");
        for (size_t set = 0; set < SETS; set++) {
                ck_assert_int_gt((int)getline(&line, &size, answers), 0);
                assert_decides(format_text("%s", line), set);
        }
        ck_assert_int_eq(pclose(answers), 0);
}
