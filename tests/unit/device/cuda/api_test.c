/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening CUDA, and the error if it cannot be opened.
 */
#include "daemon/device/cuda/api.h"
#include "tests/lib/fake_cuda/state.h"
#include "tests/lib/suite.h"

static struct cuda_api *api;
static struct error error;

static int open_fake(const char *name)
{
        char path[PATH_SIZE];
        fake_library(name, path, sizeof(path));
        return cuda_api_open(path, &api, &error);
}

static void assert_error_has(const char *text, const char *part)
{
        ck_assert_msg(strstr(text, part) != NULL, "'%s' is not in: %s", part, text);
        ck_assert_ptr_null(strchr(text, '\n'));
}

/* ---- on ---- */

/* Loop: the runtime's major version. */
TEST(a_runtime_of_either_version_opens, .from = 12, .to = 14)
{
        char name[32];
        snprintf(name, sizeof(name), "libcudart.so.%d", _i);
        setenv("FAKECUDA_DEVICES", "3", 1);
        ck_assert_msg(open_fake(name) == 0, "%s", error.text);
        ck_assert_int_eq(api->n_devices, 3);
        ck_assert_int_eq(api->runtime_version / 1000, _i);
        ck_assert_int_eq(api->driver_version, 13000);
        assert_error_has(api->library, name);
}

TEST(opening_the_runtime_creates_no_context)
{
        char *path = suite_path("state");
        setenv("FAKECUDA_STATE", path, 1);
        const struct fake_state *state = fake_state_map(path);
        ck_assert_int_eq(open_fake("libcudart.so.13"), 0);
        ck_assert_uint_eq(state->contexts[0], 0);
}

TEST(batches_need_a_driver_that_knows_them)
{
        ck_assert_int_eq(open_fake("libcudart.so.12"), 0);
        ck_assert(cuda_has_batch(api));
        api->driver_version = 12070;
        ck_assert(!cuda_has_batch(api));
}

TEST(a_uuid_has_the_format_of_nvidia_smi)
{
        struct cu_uuid uuid = {"\x01\x23\x45\x67\x89\xab\xcd\xef\xfe\xdc\xba\x98\x76\x54\x32\x10"};
        char text[CUDA_UUID_TEXT];
        cuda_uuid_text(&uuid, text);
        ck_assert_str_eq(text, "GPU-01234567-89ab-cdef-fedc-ba9876543210");
}

/* ---- by the usual names, in a process with the folder in LD_LIBRARY_PATH ---- */

/* This program, run with PRINT_OPENED, prints one line with the opened library, or the reason for the failure. */
__attribute__((constructor)) static void print_opened(void)
{
        if (!getenv("PRINT_OPENED"))
                return;
        puts(cuda_api_open(NULL, &api, &error) == 0 ? api->library : error.text);
        fflush(stdout);
        _exit(0);
}

static char *opened_in(const char *folder, const char *environment)
{
        static char line[2048];
        /* Of this process, since an emulator's link differs for others. */
        char *self = realpath("/proc/self/exe", NULL);
        FILE *f = popen(format_text("PRINT_OPENED=1 %s LD_LIBRARY_PATH=%s %s", environment, folder, self), "re");
        free(self);
        ck_assert_ptr_nonnull(f);
        if (!fgets(line, sizeof(line), f))
                line[0] = '\0';
        ck_assert_int_eq(pclose(f), 0);
        line[strcspn(line, "\n")] = '\0';
        return line;
}

static char *fakes(void)
{
        char path[PATH_SIZE];
        fake_library("", path, sizeof(path));
        return realpath(path, NULL);
}

TEST(the_newest_runtime_is_opened)
{
        ck_assert_str_eq(opened_in(fakes(), ""), "libcudart.so.13");
}

TEST(an_older_runtime_is_used_with_an_older_driver)
{
        ck_assert_str_eq(opened_in(fakes(), "FAKECUDA_VERSION=12080"), "libcudart.so.12");
}

/* Files that are no libraries hide those of the system. */
static char *invalid_runtimes(void)
{
        char *folder = suite_path("broken-%d", (int)getpid());
        must(mkdir(folder, 0755));
        file_write(format_text("%s/libcudart.so.13", folder), "", 0);
        file_write(format_text("%s/libcudart.so.12", folder), "", 0);
        return folder;
}

TEST(a_runtime_is_looked_for_in_more_folders)
{
        char *more = format_text("STREAMERD_CUDART_PATH=/nowhere:%s", fakes()), *path = fakes();
        char *want = format_text("%s/libcudart.so.13", path);
        ck_assert_str_eq(opened_in(invalid_runtimes(), more), want);
        ck_assert_str_eq(opened_in(path, more), "libcudart.so.13");
}

TEST(without_a_library_the_error_lists_all_names)
{
        const char *line = opened_in(invalid_runtimes(), "");
        assert_error_has(line, "libcudart.so.13: ");
        assert_error_has(line, "; ");
        assert_error_has(line, "libcudart.so.12: ");
}

TEST(without_a_gpu_only_the_reason_is_reported)
{
        const char *line = opened_in(fakes(), "FAKECUDA_DEVICES=0");
        assert_error_has(line, "no GPU is visible");
        ck_assert_ptr_null(strstr(line, "libcudart"));
}

/* ---- off ---- */

TEST(a_missing_library_is_named)
{
        ck_assert_int_lt(cuda_api_open("/nowhere/libcudart.so.13", &api, &error), 0);
        assert_error_has(error.text, "/nowhere/libcudart.so.13: cannot open");
}

TEST(an_incompatible_library_is_distinguished_from_a_missing_one)
{
        ck_assert_int_lt(open_fake("libcuda.so.1"), 0);
        assert_error_has(error.text, "libcuda.so.1 has no cudaGetDeviceCount");
}

static const struct {
        const char *variable, *value, *says;
} causes[] = {
        {"FAKECUDA_VERSION", "0", "no NVIDIA driver"},
        {"FAKECUDA_VERSION", "12040", "too old: it is made for CUDA 12.4"},
        {"FAKECUDA_FAIL", "cudaGetDeviceCount:1:34", "stub"}, /* the toolkit's library in the driver's place */
        {"FAKECUDA_FAIL", "cudaGetDeviceCount:1:801", "NOT_SUPPORTED (801)"},
        {"FAKECUDA_FAIL", "cuInit:1:999", "cuInit: UNKNOWN (999) (is the kernel module nvidia-uvm"},
        {"FAKECUDA_FAIL", "cudaGetDeviceCount:1:802", "nvidia-fabricmanager has to run"},
        {"FAKECUDA_FAIL", "cudaGetDeviceCount:1:803", "\"compat\" folder"},
        {"FAKECUDA_FAIL", "cudaGetDeviceCount:1:804", "\"compat\" folder"},
        {"FAKECUDA_FAIL", "cudaGetDeviceCount:1:805", "CUDA_MPS_PIPE_DIRECTORY"},
        {"CUDA_VISIBLE_DEVICES", "7", "CUDA_VISIBLE_DEVICES=7"},
        {"STREAMER_CUDA_LIBRARY", "/nowhere/libcuda.so.1", "/nowhere/libcuda.so.1"},
};

TEST(disabled_cuda_reports_the_reason, EACH(causes))
{
        setenv(causes[_i].variable, causes[_i].value, 1);
        ck_assert_int_lt(open_fake("libcudart.so.13"), 0);
        assert_error_has(error.text, causes[_i].says);
}

static void device_file(const char *folder, const char *name, mode_t mode)
{
        file_put(folder, name, "");
        must(chmod(format_text("%s/%s", folder, name), mode));
}

/* A device folder that another user may enter, with a file of that mode. */
static char *device_folder(mode_t mode)
{
        char *folder = suite_path("dev-%o", (unsigned)mode);
        must(chmod(suite_folder(), 0755));
        must(mkdir(folder, 0755));
        device_file(folder, "nvidia0", mode);
        device_file(folder, "nvidiactl", mode);
        device_file(folder, "sda", 0);
        if (geteuid() == 0)
                must(seteuid(65534));
        return folder;
}

TEST(inaccessible_device_files_precede_every_other_reason)
{
        const char *folder = device_folder(0);
        cuda_api_explain(&(struct cuda_api){.driver_version = 13000}, CUDA_NO_DEVICE, folder, &error);
        assert_error_has(error.text, "no permission on ");
        assert_error_has(error.text, "/dev-0/nvidia");
        assert_error_has(error.text, "and 1 more");
}

TEST(accessible_device_files_are_no_reason)
{
        const char *folder = device_folder(0666);
        cuda_api_explain(&(struct cuda_api){.driver_version = 13000}, CUDA_NO_DEVICE, folder, &error);
        assert_error_has(error.text, "no GPU is visible");
}
