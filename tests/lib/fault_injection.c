/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/fault_injection.h"
#include "tests/lib/base.h"
#include "tests/lib/daemon.h"

#include <fcntl.h>

static struct fault_page *page;
static char *path, *library;

void faults_begin(const char *folder)
{
        char *real = realpath(build_path("tests/fault/libfault.so"), NULL);
        if (real == NULL)
                die_errno("libfault.so");
        library = real;
        path = format_text("%s/faults", folder);
        int fd = must(open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
        must(ftruncate(fd, sizeof(*page)));
        page = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (page == MAP_FAILED)
                die_errno("mmap");
        close(fd);
}

void faults_show(void)
{
        setenv(FAULT_PAGE, path, 1);
        setenv("LD_PRELOAD", library, 1);
}

void faults_hide(void)
{
        unsetenv(FAULT_PAGE);
        unsetenv("LD_PRELOAD");
}

const char *fault_name(enum fault_call call)
{
        static const char *const names[] = {
#define CALL(name, result, error) #name,
                FAULT_CALLS(CALL) FAULT_VARIADIC_CALLS(CALL) FAULT_CLIENT_CALLS(CALL)
#undef CALL
        };
        return names[call];
}

void fault_arm(enum fault_call call, uint64_t nth)
{
        atomic_store(&page->struck, 0);
        atomic_store(&page->kills, 0);
        atomic_store(&page->until, nth);
        atomic_store(&page->armed, (uint32_t)call + 1);
}

void fault_arm_kill(enum fault_call call, uint64_t nth)
{
        fault_arm(call, UINT64_MAX);
        atomic_store(&page->kills, 1);
        atomic_store(&page->until, nth);
}

bool fault_disarm(void)
{
        atomic_store(&page->armed, 0);
        return atomic_load(&page->struck) != 0;
}

/* ---- whether a failure is reported ---- */

static const int errors[] = {
#define CALL(name, result, error) error,
        FAULT_CALLS(CALL) FAULT_VARIADIC_CALLS(CALL) FAULT_CLIENT_CALLS(CALL)
#undef CALL
};

#define CLOSED "closed without an answer" /* of the metrics' server */

/* Calls whose failure has a text of its own. */
static const struct {
        enum fault_call call;
        const char *text;
} texts[] = {
        {FAULT_yaml_parser_parse, "not YAML"},
        {FAULT_write, "lines dropped: log output was blocked"},
        {FAULT_EVP_MD_CTX_new, "SHA-256 could not be set up"},
        {FAULT_EVP_DigestInit_ex, "SHA-256 could not be set up"},
        {FAULT_EVP_DigestUpdate, "SHA-256 could not be set up"},
        {FAULT_EVP_MD_CTX_new, "OpenSSL could not compare the signature"},
        {FAULT_EVP_DigestVerifyInit, "OpenSSL could not compare the signature"},
        {FAULT_EVP_DigestVerify, "OpenSSL could not compare the signature"},
        {FAULT_EVP_PKEY_new_raw_public_key, "OpenSSL does not take the key of signer"},
        {FAULT_EVP_CIPHER_CTX_new, "OpenSSL could not decrypt"},
        {FAULT_EVP_CIPHER_CTX_ctrl, "OpenSSL could not decrypt"},
        {FAULT_EVP_DecryptInit_ex, "OpenSSL could not decrypt"},
        {FAULT_EVP_DecryptUpdate, "OpenSSL could not decrypt"},
        {FAULT_EVP_DecryptFinal_ex, "not match its tag"}, /* it does not tell why */
        {FAULT_EVP_DecryptFinal_ex, "its key does not open"},
        {FAULT_EVP_DecryptFinal_ex, "OpenSSL could not decrypt"},
        {FAULT_connect, "does not accept in time"},
        {FAULT_send, "the daemon closed the connection"},
        {FAULT_sendmsg, "the daemon closed the connection"},
        {FAULT_recvmsg, "the connection to the daemon broke"},
        {FAULT_recvmsg, "the connection was lost, and the load is no longer watched"},
};

static bool names_memory(const char *text)
{
        static const char *const names[] = {"no memory", "no-memory", "out of memory", "insufficient memory",
                                            "cannot allocate memory"};
        for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
                if (strcasestr(text, names[i]) != NULL)
                        return true;
        return false;
}

/* Libraries tell no reason, so lack of memory is assumed. */
bool fault_is_named(enum fault_call call, const char *text)
{
        for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
                if (texts[i].call == call && strstr(text, texts[i].text) != NULL)
                        return true;
        int error = errors[call];
        if (error == 0 || error == ENOMEM)
                return names_memory(text);
        return strcasestr(text, strerror(error)) != NULL;
}

char *fault_site(const char *program)
{
        /* One byte before the return address is within the call. */
        cleanup_free char *command = format_text("addr2line -i -e '%s' %#jx | sed 's/ (disc.*//' | tr '\\n' ' '",
                                                 program, (uintmax_t)atomic_load(&page->site) - 1);
        char *site = calloc(1, PATH_SIZE);
        FILE *lines = popen(command, "r"); /* NOLINT: a command of our own */
        if (site == NULL || lines == NULL || fgets(site, PATH_SIZE, lines) == NULL || pclose(lines) != 0)
                die_errno("addr2line");
        return site;
}

/* "path name name ...: reason" */
bool fault_is_silent(enum fault_call call, const char *site)
{
        cleanup_free char *list = file_read("tests/fault-silent.txt", NULL);
        char *next = list;
        cleanup_free char *name = format_text(" %s ", fault_name(call));
        bool found = false;
        for (char *line; !found && (line = strsep(&next, "\n")) != NULL;) {
                char *reason = strchr(line, ':'), *names = strchr(line, ' ');
                if (*line == '#' || reason == NULL || names == NULL || names > reason)
                        continue;
                *reason = '\0';
                cleanup_free char *calls = format_text("%s ", names);
                *names = '\0';
                cleanup_free char *file = format_text("/%s:", line);
                found = strstr(site, file) != NULL && strstr(calls, name) != NULL;
        }
        return found;
}

uint64_t fault_seen(enum fault_call call)
{
        return atomic_load(&page->seen[call]);
}

uint64_t fault_failed(enum fault_call call)
{
        return atomic_load(&page->failed[call]);
}
