/* SPDX-License-Identifier: Apache-2.0
 *
 * What must be undone however the program ends: by return, by Ctrl-C, by kill -9.
 *
 * A child process waits on a pipe that the program holds open. When the program is gone the pipe
 * ends, and the child removes the folders and puts the settings back that were named to it, the
 * last one first.
 */
#ifndef TESTS_LIB_UNDO_H
#define TESTS_LIB_UNDO_H

void undo_folder(const char *path);                     /* remove it */
void undo_setting(const char *path, const char *value); /* write the value into the file */

/* Does all of it now and waits for it; also runs at exit. For the process that named the first. */
void undo_now(void);

#endif
