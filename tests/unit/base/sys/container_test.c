/* SPDX-License-Identifier: Apache-2.0
 *
 * The names that container engines give to control groups, as they are on nodes.
 */
#include "daemon/base/sys/container.h"
#include "daemon/base/sys/sysfile.h"

#include "tests/lib/suite.h"

#define ID "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define POD "c3a1b2d4-0f1e-4a5b-9c8d-0123456789ab"
#define POD_IN_SLICE "c3a1b2d4_0f1e_4a5b_9c8d_0123456789ab"
#define STATIC_POD "0123456789abcdef0123456789abcdef"

static const struct {
        const char *file, *id, *pod;
} groups[] = {
        {"0::/\n", "", ""},
        {"0::/user.slice/user-1000.slice/session-3.scope\n", "", ""},
        {"0::/system.slice/streamerd.service\n", "", ""},
        {"0::/docker/" ID "\n", ID, ""},
        {"0::/system.slice/docker-" ID ".scope\n", ID, ""},
        {"0::/machine.slice/libpod-" ID ".scope/container\n", ID, ""},
        {"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" POD_IN_SLICE ".slice/cri-containerd-" ID
         ".scope\n",
         ID, POD},
        {"0::/kubepods/besteffort/pod" POD "/" ID "\n", ID, POD},
        {"0::/kubepods.slice/kubepods-pod" STATIC_POD ".slice/crio-" ID ".scope\n", ID, STATIC_POD},
        {"12:pids:/\n4:memory:/kubepods/burstable/pod" POD "/" ID "\n0::/\n", ID, POD},
        {"0::/machine.slice/machine-build\\x2dhost.scope/payload\n", "build-host", ""},
        {"0::/lxc.payload.web1\n", "web1", ""},
        {"0::/lxc.payload.a\tb\n", "a?b", ""},
        /* No names of an engine's. */
        {"0::/podium/" STATIC_POD "\n", "", ""},
        {"0::/pod\n", "", ""},
        {"0::/tripod" POD "\n", "", ""},
        {"0::/x" ID "\n", "", ""},
        {"0::/" ID "0\n", "", ""},
        {"nonsense", "", ""},
        {"", "", ""},
        {NULL, "", ""},
};

TEST(a_container_is_known_by_its_control_group, EACH(groups))
{
        struct container container;
        char *root = suite_path("root-%d", _i);
        must(mkdir(root, 0755));
        must(mkdir(format_text("%s/proc", root), 0755));
        must(mkdir(format_text("%s/proc/7", root), 0755));
        if (groups[_i].file != NULL)
                file_put(root, "proc/7/cgroup", groups[_i].file);
        sysfile_root = root;
        container_of_process(&container, 7);
        ck_assert_str_eq(container.id, groups[_i].id);
        ck_assert_str_eq(container.pod, groups[_i].pod);
}

TEST(a_name_of_any_length_is_cut)
{
        struct container container;
        char *root = suite_path("root"), name[300] = "0::/machine.slice/machine-";
        size_t len = strlen(name);
        memset(name + len, 'n', sizeof(name) - len - 1);
        must(mkdir(root, 0755));
        must(mkdir(format_text("%s/proc", root), 0755));
        must(mkdir(format_text("%s/proc/7", root), 0755));
        file_put(root, "proc/7/cgroup", name);
        sysfile_root = root;
        container_of_process(&container, 7);
        ck_assert_uint_eq(strspn(container.id, "n"), CONTAINER_ID - 1);
}

TEST(a_process_without_a_pid_has_no_container)
{
        struct container container;
        container_of_process(&container, 0);
        ck_assert_str_eq(container.id, "");
        ck_assert_str_eq(container.pod, "");
}
