/* SPDX-License-Identifier: Apache-2.0
 *
 * The main() of a program of tests: see suite.h.
 */
#include "tests/lib/suite_run.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

static const char usage[] = "usage: %s [--list] [--keep] [PATTERN...]\n"
                            "Runs the tests whose FILE.TEST matches a pattern ('quota.the_limit*'), or all.\n"
                            "  --list  print their names instead\n"
                            "  --keep  keep the folders of their files, and print them\n";

int main(int argc, char **argv)
{
        static const struct option options[] = {
                {"list", no_argument, NULL, 'l'}, {"keep", no_argument, NULL, 'k'}, {NULL, 0, NULL, 0}};
        bool list = false, keep = false;

        for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
                if (c == '?') {
                        fprintf(stderr, usage, argv[0]);
                        return 2;
                }
                list |= c == 'l';
                keep |= c == 'k';
        }
        if (suite_select(argv + optind) == 0) {
                fprintf(stderr, "%s: no test matches\n", argv[0]);
                return 2;
        }
        if (!list)
                return suite_run(keep);
        suite_list();
        return EXIT_SUCCESS;
}
