/* SPDX-License-Identifier: Apache-2.0
 *
 * A seccomp filter: see deny_syscalls.h. It does not check the architecture, because the tests use only one.
 */
#include "tests/lib/deny_syscalls.h"

#include "daemon/base/sys/machine.h"
#include "tests/lib/base.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offsetof(struct seccomp_data, field))
/* Skips so many instructions if the value differs. */
#define UNLESS(value, over) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(value), 0, (over))
#define ANSWER(error) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)(error))
#define ALLOW BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static void install(struct sock_filter *code, size_t n)
{
        must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
        must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &(struct sock_fprog){(unsigned short)n, code}));
}

void deny_openat2(int error)
{
        struct sock_filter code[] = {
                LOAD(nr),
                UNLESS(SYS_openat2, 1),
                ANSWER(error),
                ALLOW,
        };
        install(code, sizeof(code) / sizeof(code[0]));
}

void deny_pidfds(int error)
{
        struct sock_filter code[] = {
                LOAD(nr),
                UNLESS(SYS_pidfd_open, 1),
                ANSWER(error),
                UNLESS(SYS_getsockopt, 3),
                LOAD(args[2]), /* the lower half: little-endian */
                UNLESS(SO_PEERPIDFD, 1),
                ANSWER(ENOPROTOOPT),
                ALLOW,
        };
        install(code, sizeof(code) / sizeof(code[0]));
}

void deny_collapse(void)
{
        struct sock_filter code[] = {
                LOAD(nr), UNLESS(SYS_madvise, 3), LOAD(args[2]), UNLESS(25, 1), ANSWER(ENOMEM), ALLOW,
        };
        install(code, sizeof(code) / sizeof(code[0]));
}

void deny_fsids(int error)
{
        struct sock_filter code[] = {
                LOAD(nr), UNLESS(SYS_setfsuid, 1), ANSWER(error), UNLESS(SYS_setfsgid, 1), ANSWER(error), ALLOW,
        };
        install(code, sizeof(code) / sizeof(code[0]));
}
