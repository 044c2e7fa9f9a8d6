/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of devices: the options of each.
 */
#include "daemon/config/settings/setting.h"

#include "daemon/base/util.h"

#include <string.h>

static int check_device(const char *name, char why[SETTING_WHY])
{
        bool cuda = strncmp(name, "cuda:", 5) == 0;
        bool by_uuid = strncmp(name, "cuda:GPU-", 9) == 0 || strncmp(name, "cuda:MIG-", 9) == 0;
        size_t digits = cuda ? strspn(name + 5, "0123456789") : 0;
        bool by_index = digits >= 1 && digits <= 3 && name[5 + digits] == '\0';
        if (strcmp(name, "host") == 0 || by_index || by_uuid || strcmp(name, "cuda:all") == 0)
                return 0;
        return setting_wrong(why, "'%.60s' is not a device (host, cuda:N, cuda:GPU-UUID, cuda:all, or cuda:all?)",
                             name);
}

/* The name without the mark of an optional device, which "host" cannot be. */
static int copy_name(struct config_device *device, const char *text, char why[SETTING_WHY])
{
        size_t len = strlen(text);
        device->optional = len > 5 && strncmp(text, "cuda:", 5) == 0 && text[len - 1] == '?';
        cleanup_free char *name = strndup(text, len - device->optional);
        if (name == NULL)
                return setting_wrong(why, "no memory");
        int r = check_device(name, why);
        return r == 0 ? setting_copy(&device->name, name, why) : r;
}

static int parse_budget(struct config_device *device, const char *text, char why[SETTING_WHY])
{
        char digits[4] = "";
        uint64_t percent;
        size_t len = strlen(text);
        if (len >= 2 && len <= sizeof(digits) && text[len - 1] == '%') {
                memcpy(digits, text, len - 1);
                if (config_parse_size(digits, &percent) < 0 || percent < 1 || percent > 100)
                        return setting_wrong(why, "'%.40s' is not within 1%% to 100%%", text);
                device->budget_percent = (unsigned)percent;
                return 0;
        }
        device->budget_percent = 0;
        if (config_parse_size(text, &device->budget) < 0 || device->budget == 0)
                return setting_wrong(why, "'%.40s' is not a budget (a size such as 8GiB, or 90%%)", text);
        return 0;
}

static int append_device(struct config *config, struct config_device *device, char why[SETTING_WHY])
{
        for (size_t i = 0; i < config->n_devices; i++)
                if (strcmp(config->devices[i].name, device->name) == 0)
                        return setting_wrong(why, "%.60s is listed twice", device->name);
        if (config->n_devices == SETTING_LIST_MAX)
                return setting_wrong(why, "more than %d devices", SETTING_LIST_MAX);
        struct config_device *devices = array_grow(config->devices, config->n_devices, sizeof(*devices));
        if (devices == NULL)
                return setting_wrong(why, "no memory");
        config->devices = devices;
        devices[config->n_devices++] = *device;
        config->devices_origin = config->origin;
        return 0;
}

static int parse_part(struct config_device *device, enum device_part part, const char *text, char why[SETTING_WHY])
{
        static const char *const names[] = {
                [PART_PAGES] = "pages", [PART_PREFAULT] = "prefaulted", [PART_HANDLES] = "handles"};
        static const char *const pages[] = {[HOST_PAGES_AUTO] = "auto",
                                            [HOST_PAGES_HUGETLB] = "hugetlb",
                                            [HOST_PAGES_THP] = "thp",
                                            [HOST_PAGES_4K] = "4k",
                                            NULL};
        static const char *const handles[] = {
                [CUDA_HANDLES_IPC] = "cuda-ipc", [CUDA_HANDLES_VMM_FD] = "cuda-vmm-fd", NULL};
        bool host = strcmp(device->name, "host") == 0;
        if (part == PART_BUDGET)
                return parse_budget(device, text, why);
        if (host == (part == PART_HANDLES))
                return setting_wrong(why, "%s: of %s only", names[part], host ? "CUDA devices" : "the host device");

        if (part == PART_PREFAULT) {
                if (strcmp(text, "auto") == 0)
                        device->prefault = PREFAULT_AUTO;
                else if (config_parse_size(text, &device->prefault) < 0)
                        return setting_wrong(
                                why, "prefaulted: '%.40s' is not auto or a size (bytes, or with KiB, MiB, GiB, TiB)",
                                text);
                return 0;
        }
        int word = setting_find_word(part == PART_PAGES ? pages : handles, text);
        if (word < 0)
                return setting_wrong(why, "%s: '%.40s' is not %s", names[part], text,
                                     part == PART_PAGES ? "auto, hugetlb, thp or 4k" : "cuda-ipc or cuda-vmm-fd");
        if (part == PART_PAGES)
                device->pages = (enum host_pages)word;
        else
                device->handles = (enum cuda_handles)word;
        return 0;
}

int setting_add_device_parts(struct config *config, const char *const parts[DEVICE_PARTS], char why[SETTING_WHY])
{
        struct config_device device = {.budget_percent = 90, .prefault = PREFAULT_AUTO};
        if (parts[PART_DEVICE] == NULL)
                return setting_wrong(why, "has no 'device'");
        int r = copy_name(&device, parts[PART_DEVICE], why);
        for (enum device_part i = PART_BUDGET; r == 0 && i < DEVICE_PARTS; i++)
                r = parts[i] != NULL ? parse_part(&device, i, parts[i], why) : 0;
        if (r == 0)
                r = append_device(config, &device, why);
        if (r < 0)
                free(device.name);
        return r;
}

int setting_add_device(struct config *config, const char *text, char why[SETTING_WHY])
{
        cleanup_free char *name = strndup(text, strcspn(text, "="));
        const char *equals = strchr(text, '=');
        if (name == NULL)
                return setting_wrong(why, "no memory");
        const char *const parts[DEVICE_PARTS] = {
                [PART_DEVICE] = name, [PART_BUDGET] = equals != NULL ? equals + 1 : NULL};
        return setting_add_device_parts(config, parts, why);
}

void setting_clear_devices(struct config *config)
{
        for (size_t i = 0; i < config->n_devices; i++)
                free(config->devices[i].name);
        free(config->devices);
        config->devices = NULL;
        config->n_devices = 0;
}
