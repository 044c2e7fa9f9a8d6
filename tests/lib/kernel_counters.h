/* SPDX-License-Identifier: Apache-2.0
 *
 * Counters of the kernel: bytes read from storage, cached pages of a file, a process's memory, descriptors, threads
 * and processor time; and the pool of huge pages.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Bytes that the process made the storage layer read (/proc/PID/io read_bytes). */
uint64_t process_read_bytes(pid_t pid);
/* Whether it has read no model since the count was `before`. The count also includes pages of programs and directories
 * that the kernel dropped and read again; a model is larger than these, several MiB. */
bool process_read_no_model(pid_t pid, uint64_t before);

/* Bytes that it wrote by write() and the like, to files of any kind but sockets (wchar). */
uint64_t process_written_bytes(pid_t pid);

uint64_t file_cached_bytes(const char *path);
/* Writes the file back and drops its cached pages; fails if they stay in use. Does nothing on a tmpfs. */
void file_uncache(const char *path);
void file_cache(const char *path); /* reads the file through the page cache */

/* As file_cache(), and maps the file so that its pages stay: the kernel drops pages of mapped files last. */
struct held_file {
        void *map;
        uint64_t size;
};
void file_map_cached(struct held_file *held, const char *path);
void file_release(struct held_file *held);

/* Pss of anonymous and file pages, without shared memory (memfds). */
uint64_t process_memory(pid_t pid);
/* Rss of anonymous and file pages, without anonymous mappings of exactly this size. Unlike Pss it does not change when
 * another process maps or unmaps the same page. */
uint64_t process_own_memory(pid_t pid, uint64_t without);
/* Rss of anonymous mappings of exactly this size, for instance the ring. None of these figures includes hugetlb pages.
 */
uint64_t process_mapping_memory(pid_t pid, uint64_t size);
/* The largest address space since its start, and the largest Rss, also of shared memory, since the last reset. */
uint64_t process_peak_size(pid_t pid);
uint64_t process_peak_memory(pid_t pid);
void process_peak_memory_reset(pid_t pid);
uint64_t process_cpu_ns(pid_t pid); /* user and system */
unsigned process_fds(pid_t pid);
/* Those whose /proc link contains the text. */
unsigned process_fds_named(pid_t pid, const char *text);
/* Waits until the process has at most `max` descriptors; false if it keeps more. */
bool process_wait_fds(pid_t pid, unsigned max);
unsigned process_threads(pid_t pid);
/* The number of its threads of this name (NULL: of all but the first), and how many of them sleep. */
unsigned process_threads_named(pid_t pid, const char *name, unsigned *asleep);
/* Waits until it has `n` threads of this name and all of them sleep. */
void process_threads_await_asleep(pid_t pid, const char *name, unsigned n);

/* Settings of the machine change only if STREAMERD_TEST_SETTINGS is set, as `make check-servers` does.
 *
 * Takes a lock on the machine-wide settings below, until this program has exited and the settings are restored. A
 * program that changes them or relies on them calls this first. */
void machine_settings_lock(void);

/* Permits `bytes` of huge pages on demand, beside those of other programs; false if not permitted. The previous value
 * is restored at exit (at_exit.h). */
bool hugepages_allow(uint64_t bytes);

/* Reserves `bytes` of them (vm.nr_hugepages), beside those reserved before the first call; replaces the previous call.
 * False if not permitted or not available. Restored likewise. */
bool hugepages_reserve(uint64_t bytes);

/* Moves this process and its future children into a new cgroup with this limit of huge pages, and into a new mount
 * namespace with the cgroup's files at their usual place, or at `elsewhere` (a new path) if not NULL. False if not
 * permitted. Once per process; call limit_end() when all children have exited. */
bool hugepages_limit(uint64_t bytes, const char *elsewhere);
/* The same with a limit of memory. */
bool memory_limit(uint64_t bytes);
void limit_end(void);

/* Permits transparent huge pages for shared memory on request, if this may be set. Restored likewise. */
void shmem_thp_allow(void);
/* Sets the use of transparent huge pages in shared and in private memory (shmem_enabled, enabled); NULL: unchanged.
 * False if that is not permitted or not known. Restored likewise. */
bool huge_pages_choose(const char *shared, const char *private);
/* Whether the kernel refuses them for shared memory, also on request. */
bool shmem_thp_is_denied(void);
/* Whether these pages are off, or the kernel has none. */
bool shmem_thp_is_off(void);
