/* SPDX-License-Identifier: Apache-2.0
 *
 * What the kernel counts: bytes read from storage, cached pages of a file, a process's memory,
 * descriptors, threads and processor time; and the pool of huge pages.
 */
#ifndef TESTS_LIB_STORAGE_H
#define TESTS_LIB_STORAGE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Bytes that the process made the storage layer read (/proc/PID/io read_bytes). */
uint64_t process_read_bytes(pid_t pid);
/* Whether it has read none of a model since it had read `before`. Not all that it is charged for is of a model:
 * the kernel drops pages of a program and blocks of directories as it likes and reads them again. They are told
 * apart by size: a model has several MiB. */
bool process_read_no_model(pid_t pid, uint64_t before);

uint64_t file_cached_bytes(const char *path);
/* Writes it back and drops its pages, as far as the kernel lets go of them within a moment: who uses one just then
 * keeps it. */
void file_uncache(const char *path);
void file_cache(const char *path); /* reads it all through the page cache */

/* As file_cache(), and it stays there: of cached files those that are mapped are the last to go, also where a
 * machine gives back what has not been used for a minute. */
struct held_file {
        void *map;
        uint64_t size;
};
void file_hold(struct held_file *held, const char *path);
void file_release(struct held_file *held);

/* Pss of anonymous and file pages; memory that is shared on purpose (memfds) does not count. */
uint64_t process_memory(pid_t pid);
/* Anonymous pages, and those of files that it has mapped, in full: of a page that others have mapped, too, the
 * figure above has less, and more when they end. */
uint64_t process_own_memory(pid_t pid);
/* Anonymous pages of its mappings that are exactly this large: a ring, say, which is to be subtracted.
 * Huge pages of the pool (hugetlb) are in none of these figures. */
uint64_t process_mapping_memory(pid_t pid, uint64_t size);
uint64_t process_cpu_ns(pid_t pid); /* user and system */
unsigned process_fds(pid_t pid);
unsigned process_threads(pid_t pid);
/* How many of its threads have this name, and how many of them sleep. */
unsigned process_threads_named(pid_t pid, const char *name, unsigned *asleep);
/* Until there are so many of this name, and all of them sleep. */
void process_threads_await_asleep(pid_t pid, const char *name, unsigned n);

/* What follows sets what all programs of the machine share. One that does so, or counts on what is set, is alone
 * with it from here until it has ended and all is put back; others wait. The first thing that it does. */
void machine_settings_lock(void);

/* Lets the system hand out `bytes` of 2 MiB pages on demand, whatever daemons of other programs take of them
 * meanwhile; false where that is not allowed. What was set before is put back when the program ends (undo.h). */
bool hugepages_allow(uint64_t bytes);

/* Sets `bytes` of them aside (vm.nr_hugepages), beside what was set aside before the first call; instead of
 * those of the call before. False where that is not allowed, or so many are not found. Put back likewise. */
bool hugepages_reserve(uint64_t bytes);

/* Puts this process, and what it starts from now on, into a control group of its own that may have so many bytes of
 * huge pages, and into a mount namespace of its own, where the group's files are in their place, or (not NULL: a path
 * that is not there yet) elsewhere. False where that is not allowed. Once in a process; hugepages_unlimit() when all
 * that it started has ended. */
bool hugepages_limit(uint64_t bytes, const char *elsewhere);
void hugepages_unlimit(void);

/* Lets shared memory have transparent huge pages where it asks for them, as far as that may be set. Put back
 * likewise. */
void shmem_thp_allow(void);

#endif
