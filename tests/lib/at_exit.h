/* SPDX-License-Identifier: Apache-2.0
 *
 * Cleanup that runs however the program ends: by return, Ctrl-C or kill -9.
 *
 * A child process reads a pipe that the program holds open. When the program exits, the pipe closes, and the child
 * removes directories and restores settings in the reverse order of these calls.
 */
#pragma once

void at_exit_remove(const char *path);                     /* removes a directory and its contents */
void at_exit_restore(const char *path, const char *value); /* writes `value` into the file */

/* Cleans up now and waits for the end; also runs at exit. Only in the process that made the first of these calls. */
void at_exit_now(void);
