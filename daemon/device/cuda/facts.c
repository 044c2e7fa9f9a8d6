/* SPDX-License-Identifier: Apache-2.0
 *
 * The description of a GPU, from driver calls that need no context. What the driver does not know stays empty.
 */
#include "daemon/device/cuda/api.h"

#include "daemon/base/util.h"
#include "daemon/device/device.h"

#include <string.h>

static bool attribute(const struct cuda_api *api, enum cu_attribute which, cu_device device)
{
        int value = 0;
        return api->cuDeviceGetAttribute(&value, which, device) == CU_OK && value != 0;
}

void cuda_describe(const struct cuda_api *api, int ordinal, struct device_facts *facts)
{
        cu_device device;
        *facts = (struct device_facts){.in_service = true};
        if (api->cudaDeviceGetPCIBusId(facts->pci, sizeof(facts->pci), ordinal) != CUDA_OK) {
                facts->pci[0] = '\0';
                api->cudaGetLastError();
        }
        if (api->cuDeviceGet(&device, ordinal) != CU_OK)
                return;
        if (api->cuDeviceGetName(facts->model, sizeof(facts->model), device) != CU_OK)
                facts->model[0] = '\0';
        static const char mig[] = " MIG "; /* "NVIDIA A100-SXM4-40GB MIG 1g.5gb" */
        char *at = strstr(facts->model, mig);
        if (at != NULL) {
                snprintf(facts->mig, sizeof(facts->mig), "%s", at + strlen(mig));
                *at = '\0';
        }
        facts->host_pointers = attribute(api, CU_ATTR_HOST_POINTERS, device);
        facts->integrated = attribute(api, CU_ATTR_INTEGRATED, device);
        facts->vmm =
                attribute(api, CU_ATTR_VMM_SUPPORTED, device) && attribute(api, CU_ATTR_POSIX_FD_SUPPORTED, device);
}

const char *cuda_suggest_handles(const struct cuda_api *api, int ordinal, bool legacy)
{
        struct device_facts facts;
        cuda_describe(api, ordinal, &facts);
        if (access("/dev/dxg", F_OK) == 0)
                return "WSL does not share GPU memory between processes, only the host device would work";
        if (!legacy)
                return facts.integrated ? "only the host device would work" : "handles: cuda-ipc may work";
        if (facts.integrated)
                return facts.vmm ? "integrated GPUs (Tegra) have no cuda-ipc, handles: cuda-vmm-fd would work"
                                 : "integrated GPUs (Tegra) have no cuda-ipc, only the host device would work";
        return facts.vmm ? "handles: cuda-vmm-fd would work" : "only the host device would work";
}
