/* SPDX-License-Identifier: Apache-2.0
 *
 * What a GPU is, as far as the driver tells without a context. What it does not tell stays empty.
 */
#include "daemon/device/cuda_api.h"

#include "daemon/base/util.h"
#include "daemon/device/device.h"

#include <string.h>

static bool attribute(const struct cuda_api *api, enum cu_attribute which, cu_device device)
{
        int value = 0;
        return api->cuDeviceGetAttribute(&value, which, device) == CU_OK && value != 0;
}

/* The driver names an instance "NVIDIA A100-SXM4-40GB MIG 1g.5gb". */
static void split_mig(struct device_facts *facts)
{
        static const char word[] = " MIG ";
        char *at = strstr(facts->model, word);
        if (at == NULL)
                return;
        snprintf(facts->mig, sizeof(facts->mig), "%s", at + strlen(word));
        *at = '\0';
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
        split_mig(facts);
        facts->host_pointers = attribute(api, CU_ATTR_HOST_POINTERS, device);
        facts->integrated = attribute(api, CU_ATTR_INTEGRATED, device);
        facts->vmm =
                attribute(api, CU_ATTR_VMM_SUPPORTED, device) && attribute(api, CU_ATTR_POSIX_FD_SUPPORTED, device);
}

const char *cuda_other_kind(const struct cuda_api *api, int ordinal, bool legacy)
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
