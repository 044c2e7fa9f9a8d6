/* SPDX-License-Identifier: Apache-2.0
 *
 * The calls of the daemon that can fail, and how they do: CALL(name, what it returns then, errno).
 * Arguments and results are integers and pointers, which the ABI passes alike, so that one function signature wraps all
 * of them.
 *
 * Each failure is a likely one of the real call: out of memory, no descriptor, disk full, I/O error.
 */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

// clang-format off
#define FAULT_CALLS(CALL) \
        /* memory */ \
        CALL(malloc, 0, ENOMEM) CALL(calloc, 0, ENOMEM) CALL(realloc, 0, ENOMEM) CALL(reallocarray, 0, ENOMEM) \
        CALL(aligned_alloc, 0, ENOMEM) CALL(strdup, 0, ENOMEM) CALL(strndup, 0, ENOMEM) \
        CALL(mmap, -1, ENOMEM) CALL(mremap, -1, ENOMEM) CALL(madvise, -1, EAGAIN) \
        CALL(memfd_create, -1, ENFILE) CALL(ftruncate, -1, ENOSPC) \
        /* files */ \
        CALL(open, -1, EMFILE) CALL(openat, -1, EMFILE) CALL(fopen, 0, EMFILE) \
        CALL(fdopendir, 0, ENOMEM) CALL(readdir, 0, EIO) CALL(fgets, 0, EIO) \
        CALL(stat, -1, EIO) CALL(lstat, -1, EIO) CALL(fstat, -1, EIO) CALL(fstatat, -1, EIO) CALL(statx, -1, EIO) \
        CALL(access, -1, EIO) CALL(getcwd, 0, ENOENT) CALL(readlink, -1, EIO) \
        CALL(pread, -1, EIO) CALL(preadv, -1, EIO) CALL(pwritev, -1, ENOSPC) CALL(write, -1, ENOSPC) \
        CALL(flock, -1, EINTR) CALL(fcntl, -1, EMFILE) CALL(posix_fadvise, EINVAL, 0) \
        CALL(fsync, -1, EIO) CALL(renameat, -1, EIO) \
        CALL(pwrite, -1, EIO) CALL(unlinkat, -1, EIO) \
        CALL(ioctl, -1, ENOTTY) CALL(syscall, -1, EMFILE) CALL(getrandom, -1, EAGAIN) \
        /* sockets */ \
        CALL(socket, -1, EMFILE) CALL(bind, -1, EACCES) CALL(listen, -1, EADDRINUSE) CALL(connect, -1, EAGAIN) \
        CALL(accept4, -1, EMFILE) CALL(recv, -1, ECONNRESET) \
        CALL(sendmsg, -1, ENOBUFS) CALL(sendto, -1, EAGAIN) \
        CALL(getsockopt, -1, ENOBUFS) CALL(setsockopt, -1, ENOBUFS) CALL(getsockname, -1, ENOBUFS) CALL(socketpair, -1, EMFILE) \
        CALL(epoll_create1, -1, EMFILE) CALL(epoll_ctl, -1, ENOMEM) \
        /* threads and limits; these return the error itself */ \
        CALL(pthread_create, EAGAIN, 0) CALL(pthread_cond_init, ENOMEM, 0) CALL(pthread_mutex_init, ENOMEM, 0) \
        CALL(getrlimit, -1, EPERM) CALL(setrlimit, -1, EPERM) \
        /* libuv */ \
        CALL(uv_loop_init, -EMFILE, 0) CALL(uv_poll_init, -ENOMEM, 0) \
        CALL(uv_poll_start, -ENOMEM, 0) CALL(uv_signal_init, -ENOMEM, 0) CALL(uv_signal_start, -EINVAL, 0) \
        /* libcurl */ \
        CALL(curl_global_init, 2, 0) CALL(curl_easy_init, 0, ENOMEM) CALL(curl_easy_setopt, 27, 0) \
        CALL(curl_slist_append, 0, ENOMEM) \
        CALL(curl_url, 0, ENOMEM) CALL(curl_url_set, 7, 0) CALL(curl_url_get, 7, 0) \
        CALL(curl_multi_init, 0, ENOMEM) CALL(curl_multi_add_handle, 3, 0) \
        CALL(curl_multi_perform, 3, 0) CALL(curl_multi_poll, 3, 0) CALL(curl_share_init, 0, ENOMEM) CALL(curl_share_setopt, 4, 0) \
        /* users and groups; these return the error itself */ \
        CALL(getpwnam_r, ENOMEM, 0) CALL(getgrnam_r, ENOMEM, 0) \
        /* the rest */ \
        CALL(eventfd, -1, EMFILE) \
        CALL(HMAC, 0, 0) CALL(EVP_Digest, 0, 0) \
        CALL(XXH3_createState, 0, ENOMEM) CALL(EVP_MD_CTX_new, 0, ENOMEM) CALL(EVP_DigestInit_ex, 0, 0) \
        CALL(EVP_CIPHER_CTX_new, 0, 0) CALL(EVP_CIPHER_CTX_ctrl, 0, 0) CALL(EVP_DecryptInit_ex, 0, 0) \
        CALL(EVP_DecryptUpdate, 0, 0) CALL(EVP_DecryptFinal_ex, 0, 0) CALL(EVP_PKEY_new_raw_public_key, 0, 0) \
        CALL(EVP_DigestVerifyInit, 0, 0) CALL(EVP_DigestVerify, -1, 0) \
        CALL(EVP_MD_CTX_copy_ex, 0, 0) CALL(EVP_DigestUpdate, 0, 0) CALL(EVP_DigestFinal_ex, 0, 0) \
        CALL(yaml_parser_initialize, 0, 0) CALL(yaml_parser_parse, 0, 0) CALL(XML_ParserCreate, 0, ENOMEM) \
        CALL(sd_is_socket_unix, -EINVAL, 0) CALL(sd_listen_fds_with_names, -ENOMEM, 0) \
        CALL(sd_watchdog_enabled, -EINVAL, 0) CALL(sd_bus_open_system, -EIO, 0) CALL(pipe2, -1, EMFILE) CALL(ppoll, -1, ENOMEM)
/* These have functions of their own in the shim. */
#define FAULT_VARIADIC_CALLS(CALL) CALL(asprintf, -1, ENOMEM)
/* More calls of streamerctl and the client library. The daemon calls some of these, too; for it they are exempt. */
#define FAULT_CLIENT_CALLS(CALL) \
        CALL(recvmsg, -1, ECONNRESET) CALL(send, -1, ENOBUFS) CALL(poll, -1, EINTR) CALL(realpath, 0, ENOMEM) \
        CALL(mkdirat, -1, ENOSPC) CALL(read, -1, EIO) CALL(fread, 0, EIO) CALL(fwrite, 0, ENOSPC) \
        CALL(fflush, -1, ENOSPC) CALL(fork, -1, EAGAIN) CALL(opendir, 0, EMFILE) \
        CALL(msgpack_zone_new, 0, ENOMEM) CALL(msgpack_unpack, -2, 0)
// clang-format on

enum fault_call {
#define CALL(name, result, error) FAULT_##name,
        FAULT_CALLS(CALL) FAULT_VARIADIC_CALLS(CALL)
#undef CALL
                FAULT_COUNT,
        FAULT_CLIENT_BEFORE = FAULT_COUNT - 1,
#define CALL(name, result, error) FAULT_##name,
        FAULT_CLIENT_CALLS(CALL)
#undef CALL
                FAULT_COUNT_ALL
};

#define FAULT_PAGE "STREAMERD_FAULT_PAGE" /* the file that the test and the program map */
#define FAULT_OBJECT                                                                                                   \
        "STREAMERD_FAULT_OBJECT" /* part of the name of the library whose calls count; unset: the program's */
#define FAULT_SITES "STREAMERD_FAULT_SITES" /* the file that lists where calls failed, for tests/fault_sites.py */

/* Shared by the test and the program. */
struct fault_page {
        _Atomic uint32_t armed;  /* call + 1; 0: none */
        _Atomic uint64_t until;  /* calls that still succeed before it */
        _Atomic uint32_t struck; /* the armed call has failed */
        _Atomic uint64_t site;   /* where: the address to which it returned, relative to the object */
        _Atomic uint32_t kills;  /* the armed call ends the program as SIGKILL does, before it is made */
        _Atomic uint64_t seen[FAULT_COUNT_ALL];
        _Atomic uint64_t failed[FAULT_COUNT_ALL];
};
