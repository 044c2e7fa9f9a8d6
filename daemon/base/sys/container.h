/* SPDX-License-Identifier: Apache-2.0
 *
 * Which container and pod a process runs in, by the names that container engines give to control groups:
 *
 *   /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice/cri-containerd-ID.scope
 *   /kubepods/besteffort/podUID/ID     /docker/ID     /system.slice/docker-ID.scope     /machine.slice/libpod-ID.scope
 *   /machine.slice/machine-NAME.scope     /lxc.payload.NAME
 */
#pragma once

#include <sys/types.h>

#define CONTAINER_ID 65 /* 64 hexadecimal digits */
#define CONTAINER_POD 37

struct container {
        char id[CONTAINER_ID];   /* or its name; "": none, or not known */
        char pod[CONTAINER_POD]; /* its UID in Kubernetes; "": likewise */
};

/* Of a process in this PID namespace or one below it. Reads the kernel's files. */
void container_of_process(struct container *container, pid_t pid);
