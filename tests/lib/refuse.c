/* SPDX-License-Identifier: Apache-2.0
 *
 * A filter of system calls. The architecture is not looked at: the tests make no call of another one.
 */
#include "tests/lib/refuse.h"

#include "daemon/base/machine.h"
#include "tests/lib/base.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offsetof(struct seccomp_data, field))
/* Over so many where the value is another. */
#define UNLESS(value, over) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(value), 0, (over))
#define ANSWER(error) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)(error))
#define ALLOW BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static void install(struct sock_filter *code, size_t n)
{
        must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
        must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &(struct sock_fprog){(unsigned short)n, code}));
}

void refuse_openat2(int error)
{
        struct sock_filter code[] = {
                LOAD(nr),
                UNLESS(SYS_openat2, 1),
                ANSWER(error),
                ALLOW,
        };
        install(code, sizeof(code) / sizeof(code[0]));
}

void refuse_pidfds(int error)
{
        struct sock_filter code[] = {
                LOAD(nr),
                UNLESS(SYS_pidfd_open, 1),
                ANSWER(error),
                UNLESS(SYS_getsockopt, 3),
                LOAD(args[2]), /* its lower half: little-endian */
                UNLESS(SO_PEERPIDFD, 1),
                ANSWER(ENOPROTOOPT),
                ALLOW,
        };
        install(code, sizeof(code) / sizeof(code[0]));
}

void refuse_fsids(int error)
{
        struct sock_filter code[] = {
                LOAD(nr), UNLESS(SYS_setfsuid, 1), ANSWER(error), UNLESS(SYS_setfsgid, 1), ANSWER(error), ALLOW,
        };
        install(code, sizeof(code) / sizeof(code[0]));
}
