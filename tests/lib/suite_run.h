/* SPDX-License-Identifier: Apache-2.0
 *
 * The registered tests of a program, for its main().
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Selects the tests whose "file.test" matches a pattern of the shell; no pattern: all. Returns their number. */
size_t suite_select(char *const *patterns);
/* Prints the names of the selected tests. */
void suite_list(void);
/* Runs the selected tests, each file in a process of its own, whose folder `keep` keeps; returns an exit status.
 *
 * The environment of the caller loses its settings for AWS, Hugging Face and proxies, so that tests have no credentials
 * but their own. TAP=DIR in it writes DIR/FILE.tap. */
int suite_run(bool keep);
