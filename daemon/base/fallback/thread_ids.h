/* SPDX-License-Identifier: Apache-2.0
 *
 * The user and the group as whom one thread of a daemon that is root opens files.
 *
 * The file system ids suffice. A kernel without them (gVisor) changes the effective ids; the real uid stays root, so
 * that no other user may signal or trace the thread.
 */
#ifndef DAEMON_BASE_FALLBACK_THREAD_IDS_H
#define DAEMON_BASE_FALLBACK_THREAD_IDS_H

#include <stdbool.h>
#include <sys/types.h>

enum thread_ids { THREAD_IDS_OWN, THREAD_IDS_FILE_SYSTEM, THREAD_IDS_EFFECTIVE };

/* False: it could not, and thread_ids_drop(*ids) is to be called all the same. */
bool thread_ids_assume(uid_t uid, gid_t gid, enum thread_ids *ids);
/* Back to root. Aborts if the thread would keep another id. */
void thread_ids_drop(enum thread_ids ids);

#endif
