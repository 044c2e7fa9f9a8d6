/* SPDX-License-Identifier: Apache-2.0
 *
 * Encrypted models, as users see them: loads from disk and over HTTP, what is shown, errors, keys that are replaced,
 * and clients that attach meanwhile.
 */
#include "tests/integration/encrypted_fixture.h"
#include "tests/lib/endpoint.h"
#include "tests/lib/fuse_file.h"
#include "tests/lib/streamerctl.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/resource.h>

static const struct encrypted_form v1 = {.version1 = true}, v2 = {.chunk = 65536};

FIXTURE(.each = {encrypted_begin, encrypted_end});

/* ---- what is loaded and shown ---- */

static const struct encrypted_form forms[] = {
        {.version1 = false},
        {.version1 = true},
        {.cipher = "aes128gcm", .chunk = 65536},
        {.cipher = "chacha20poly1305", .chunk = 1000003},
        {.cipher = "chacha20poly1305", .version1 = true},
};

TEST(an_encrypted_model_is_equal_to_its_plain_copy)
{
        char *plain = suite_path("root/plain.safetensors");
        model_write(model, plain);
        client_load(client, plain, "plain");
        for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
                char *name = format_text("m%zu", i);
                client_load(client, encrypted_file(format_text("%s.safetensors", name), &forms[i]), name);
                client_equals(client, name, model);
                ck_assert_str_eq(json_text(client_show(client, name), "digest"),
                                 json_text(client_show(client, "plain"), "digest"));
                ck_assert_uint_ne(json_number(client_show(client, name), "generation"),
                                  json_number(client_show(client, "plain"), "generation"));
                ck_assert_int_eq(client_call_code(client, "verify", format_text("{\"model\":\"%s\"}", name)), 0);
                client_unload(client, name);
        }
        ck_assert_ptr_null(json_at(client_show(client, "plain"), "encryption"));
}

TEST(show_names_the_cipher_the_keys_and_the_signer)
{
        char *path = encrypted_file("m.safetensors", &v2);
        ctl_says(test_daemon.socket, 0, "  encrypted aes256gcm, key aes256gcm, signed by signer\n", "load", "--dry-run",
                 path, NULL);
        ctl_says(test_daemon.socket, 0,
                 "\"encryption\":{\"cipher\":\"aes256gcm\",\"keys\":[\"aes256gcm\"],\"signer\":\"signer\"}", "load",
                 "--dry-run", "--json", path, NULL);
        client_load(client, path, "m");
        ctl_says(test_daemon.socket, 0, "encryption  aes256gcm, key aes256gcm, signed by signer\n", "show", "m", NULL);
        const json_t *m = client_show(client, "m");
        ck_assert_str_eq(json_text(m, "encryption.cipher"), "aes256gcm");
        ck_assert_str_eq(json_text(m, "encryption.keys.0"), "aes256gcm");
        ck_assert_str_eq(json_text(m, "encryption.signer"), "signer");
        /* What clients read of the checkpoint's metadata is its own. */
        streamer_lease *lease = client_attach(client, "m");
        ck_assert_uint_eq(streamer_metadata_count(lease), 1);
        ck_assert_str_eq(streamer_metadata(lease, "format"), "pt");
        streamer_detach(lease);
}

/* ---- errors: one line, exit code 1, and nothing is resident ---- */

static const struct {
        struct encrypted_form form;
        const char *says;
} errors[] = {
        {{.key_id = "gone"}, "encrypted with key 'gone' (aes256gcm), which is not among encryption.keys ("},
        {{.signer_id = "gone"}, "signed by 'gone', which is no signer of encryption.keys ("},
        {{.other_signer = true}, "the signature of its header is not one by 'signer': the header was changed, or is "},
        {{.is_unsigned = true}, "encrypted, and its header is not signed ("},
        {{.plain = 1}, "tensor 'first' is not encrypted, and so not protected ("},
        {{.find = "allow = true", .replace = "allow = x"}, "its policy is not the default one, and others are not "},
};

TEST(what_is_wrong_with_a_file_is_one_line, EACH(errors))
{
        char *path = encrypted_file("m.safetensors", &errors[_i].form);
        for (int dry = 0; dry < 2; dry++) {
                char *text =
                        ctl_says(test_daemon.socket, 1, errors[_i].says, "load", path, dry ? "--dry-run" : NULL, NULL);
                ck_assert_str_eq(strchr(text, '\n'), "\n");
                ck_assert_ptr_nonnull(strstr(text, "m.safetensors)"));
        }
        ck_assert_uint_eq(client_used(client), 0);
}

TEST(verify_sha256_of_an_encrypted_file_is_refused)
{
        char text[1024], sum[65], *path = encrypted_file("m.safetensors", &v2);
        file_sha256(path, sum);
        file_put(suite_path("root"), "SHA256SUMS", format_text("%s  m.safetensors\n", sum));
        ck_assert_int_eq(client_load_sha256(client, path, "m", text), STREAMER_EUNSUPPORTED);
        ck_assert_ptr_nonnull(strstr(text, "the signature and tags are checked instead"));
}

/* In place: whoever reads the file meanwhile finds all of it. */
static void damage(const char *path, uint64_t before_end)
{
        unsigned char byte;
        off_t at = (off_t)(file_size(path) - before_end);
        int fd = must(open(path, O_RDWR | O_CLOEXEC));
        ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
        byte ^= 4;
        ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
        close(fd);
}

TEST(a_damaged_file_fails_its_load, .to = 2)
{
        char *path = encrypted_file("m.safetensors", _i == 0 ? &v1 : &v2);
        damage(path, 1);
        client_load_fails(client, path, "m", STREAMER_EFAILED, "tensor 'z.000019': chunk ");
        streamer_lease *lease;
        client_fails(client, streamer_attach(client, "m", NULL, &lease), STREAMER_EFAILED, "does not match its tag");
        client_wait_used(client, 0);
}

TEST(a_diff_reads_the_header_of_an_encrypted_file)
{
        char *path = encrypted_file("m.safetensors", &v2);
        client_load(client, path, "m");
        ctl_says(test_daemon.socket, 0, "", "diff", "m", path, NULL);
}

/* ---- over HTTP ---- */

static struct {
        const char *data;
        size_t size;
        bool redirects;
        _Atomic unsigned asked;
} served;

static void answer(struct endpoint *endpoint, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        served.asked++;
        if (served.redirects && strstr(request->path, "there") == NULL) {
                reply->status = 302;
                reply->headers = format_text("Location: %s/there/m.safetensors\r\n", endpoint->url);
                return;
        }
        endpoint_range(request, reply, served.data, served.size);
        reply->headers = format_text("%sETag: \"1\"\r\n", reply->headers != NULL ? reply->headers : "");
}

static struct endpoint web = {.answer = answer};

static void serve(const char *path)
{
        served.data = file_read(path, &served.size);
        endpoint_start(&web);
}

TEST(an_encrypted_model_is_loaded_over_http, .to = 5 * 2)
{
        served.redirects = _i % 2 == 1;
        serve(encrypted_file("m.safetensors", &forms[_i / 2]));
        client_load_equals(client, format_text("%s/m.safetensors", web.url), "m", model);
}

/* It is not requested again: no answer would be another one. */
TEST(a_damaged_file_fails_its_load_over_http, .to = 4)
{
        char *path = encrypted_file("m.safetensors", _i / 2 == 0 ? &v1 : &v2);
        served.redirects = _i % 2 == 1;
        damage(path, model->bytes - 1000000);
        serve(path);
        client_load_fails(client, format_text("%s/m.safetensors", web.url), "m", STREAMER_EFAILED,
                          "tensor 'big': chunk ");
        ck_assert_uint_lt(served.asked, 40);
        client_wait_used(client, 0);
}

/* ---- keys are replaced ---- */

static int reload(const char *keys)
{
        encrypted_keys_write(keys_path(), keys);
        return client_call_code(client, "reload", NULL);
}

TEST(a_reload_replaces_the_keys)
{
        char *path = encrypted_file("m.safetensors", &v2), *other = encrypted_file("n.safetensors", &v2);
        ck_assert_int_eq(reload(encrypted_keys("signer")), 0);
        client_load_fails(client, path, "m", STREAMER_EFAILED, "which is not among encryption.keys");
        ck_assert_int_eq(reload(encrypted_keys("aes256gcm signer")), 0);
        client_load(client, path, "m");
        ck_assert_int_eq(reload(encrypted_keys("aes128gcm signer")), 0);
        client_equals(client, "m", model);
        client_load(client, path, "alias"); /* it is resident */
        client_equals(client, "alias", model);
        client_load_fails(client, other, "n", STREAMER_EFAILED, "which is not among encryption.keys");
}

TEST(a_reload_with_a_wrong_file_of_keys_is_refused, .to = 2)
{
        char *path = encrypted_file("m.safetensors", &v2);
        if (_i == 0) {
                client_fails(client, reload("{\"keys\":["), STREAMER_EFAILED,
                             "encryption.keys: it is not JSON of a key");
        } else {
                must(chmod(keys_path(), 0644));
                client_fails(client, client_call_code(client, "reload", NULL), STREAMER_EFAILED,
                             "encryption.keys: other users can read or write the file (mode 0644; chmod 400)");
        }
        client_load_equals(client, path, "m", model);
}

TEST(a_daemon_does_not_start_without_its_keys)
{
        struct daemon d;
        daemon_init(&d, suite_path("other"));
        suite_file("wrong.yaml", format_text("roots: [%s]\ndevices: [host=8MiB]\nencryption: {keys: [\"file:%s\"]}\n",
                                             suite_path("root"), suite_path("none.json")));
        ck_assert_int_eq(daemon_run(&d, (const char *const[]){"--config", suite_path("wrong.yaml"), NULL}), 1);
        ck_assert_ptr_nonnull(strstr(file_read(d.log, NULL), "encryption.keys: "));
        suite_file("wrong.yaml", format_text("roots: [%s]\nencryption: {keys: [\"AAAA\"]}\n", suite_path("root")));
        ck_assert_int_eq(daemon_run(&d, (const char *const[]){"--config", suite_path("wrong.yaml"), NULL}), 2);
        char *log = file_read(d.log, NULL);
        ck_assert_ptr_nonnull(strstr(log, "is neither file:PATH nor credential:NAME"));
        ck_assert_ptr_null(strstr(log, "AAAA"));
}

/* ---- secrets ---- */

TEST(the_process_is_not_dumped)
{
        char path[64];
        struct stat st;
        if (geteuid() != 0)
                SKIP("needs root");
        /* A process that may be dumped owns its files; else they are root's. As root both are: what is read of it is
         * not there for another user, whatever the modes. */
        snprintf(path, sizeof(path), "/proc/%d/environ", (int)test_daemon.pid);
        must(stat(path, &st));
        ck_assert_uint_eq(st.st_uid, 0);
}

/* ---- clients that attach while it loads ---- */

static struct fuse_file hang;

/* Half of the data is held. */
static void begin_held(void)
{
        mkdir(suite_path("root"), 0755);
        model = encrypted_model(41);
        encrypted_write(&v2, model, suite_path("backing"));
        fuse_file_start(&hang, suite_path("root/mnt"), "m.safetensors", suite_path("backing"));
        encrypted_begin();
}

static void end_held(void)
{
        encrypted_end();
        fuse_file_stop(&hang);
}

FIXTURE(.each = {begin_held, end_held}, .unavailable = fuse_file_unavailable);

static streamer_op *start_held(void)
{
        fuse_file_hold(&hang, file_size(suite_path("backing")) - model->bytes / 2);
        streamer_op *op = client_load_begin(client, hang.path, "m");
        fuse_file_wait_held(&hang);
        return op;
}

static const streamer_attach_opts briefly = {.struct_size = sizeof(briefly), .timeout_ms = 100};

/* A mapping shows all of a segment, and so ciphertext, and what has not been compared with its tag. */
TEST(no_client_gets_memory_that_is_being_decrypted)
{
        streamer_lease *lease;
        streamer_op *op = start_held();
        for (int i = 0; i < 3; i++)
                ck_assert_int_eq(streamer_attach(client, "m", &briefly, &lease), STREAMER_ETIMEOUT);
        ck_assert_str_eq(client_state(client, "m"), "loading");
        ck_assert_uint_eq(client_leases(client), 0);
        fuse_file_release(&hang);
        ck_assert_int_eq(client_load_end(op), 0);
        client_equals(client, "m", model);
}

/* The rest is damaged: what waits gets the error, and never a lease. */
TEST(a_client_that_waits_gets_the_error_of_a_damaged_file)
{
        struct ctl_running running;
        struct ctl r;
        streamer_op *op = start_held();
        ctl_start(&running, test_daemon.socket, (const char *const[]){"cat", "m", "first", NULL});
        damage(suite_path("backing"), 1);
        fuse_file_release(&hang);
        ck_assert_int_eq(client_load_end(op), STREAMER_EFAILED);
        ctl_finish(&running, &r);
        ck_assert_int_eq(r.code, 1);
        ck_assert_uint_eq(r.out_size, 0);
        ck_assert_ptr_nonnull(strstr(r.err, "does not match its tag"));
        ck_assert_uint_eq(client_leases(client), 0);
        client_wait_used(client, 0);
}

/* It opens it: the load's own request has its lease when the model is ready. */
TEST(a_load_that_attaches_waits_for_all_bytes)
{
        struct ctl_running running;
        struct ctl r;
        streamer_op *op = start_held();
        ctl_start(&running, test_daemon.socket, (const char *const[]){"cat", "m", "big", NULL});
        fuse_file_release(&hang);
        ck_assert_int_eq(client_load_end(op), 0);
        ctl_finish(&running, &r);
        ck_assert_int_eq(r.code, 0);
        ck_assert_uint_eq(r.out_size, 5000000);
        ck_assert(model_check(model, 1, r.out));
}

/* ---- keys in memory ---- */

struct found {
        unsigned protected,
                elsewhere; /* copies in memory that is locked, if it may be, and not dumped, and in any other */
};

/* Of these bytes in all of the daemon's memory. */
static struct found find_in_memory(const void *bytes, size_t size)
{
        struct found found = {0, 0};
        struct rlimit limit;
        must(getrlimit(RLIMIT_MEMLOCK, &limit));
        bool may_lock = limit.rlim_cur >= MIB;
        char line[1024], *data = NULL;
        unsigned long from = 0, to, at = 0, n = 0;
        FILE *maps = fopen(format_text("/proc/%d/smaps", (int)test_daemon.pid), "re");
        int memory = must(open(format_text("/proc/%d/mem", (int)test_daemon.pid), O_RDONLY | O_CLOEXEC));
        while (fgets(line, sizeof(line), maps) != NULL) {
                char mode[8];
                if (sscanf(line, "%lx-%lx %7s", &from, &to, mode) == 3) {
                        free(data);
                        data = mode[0] == 'r' ? malloc(to - from) : NULL;
                        ssize_t got = data != NULL ? pread(memory, data, to - from, (off_t)from) : 0;
                        n = got > 0 ? (unsigned long)got : 0;
                } else if (strncmp(line, "VmFlags:", 8) == 0) {
                        bool is_protected = strstr(line, " dd") != NULL && (!may_lock || strstr(line, " lo") != NULL);
                        for (at = 0; at < n; at++) {
                                const char *copy = memmem(data + at, n - at, bytes, size);
                                if (copy == NULL)
                                        break;
                                at = (unsigned long)(copy - data);
                                found.protected += is_protected;
                                found.elsewhere += !is_protected;
                        }
                }
        }
        free(data);
        fclose(maps);
        close(memory);
        return found;
}

/* The data key is in use: one message is the tensor of which the half is held. */
TEST(keys_are_in_memory_that_is_locked_and_not_dumped)
{
        unsigned char key[32], text[64];
        if (geteuid() != 0)
                SKIP("needs root");
        if (suite_short())
                SKIP("a sanitizer's shadow memory is too large to be read");
        encrypted_write(&v1, model, suite_path("backing"));
        encrypted_key_of("aes256gcm", key);
        EVP_EncodeBlock(text, key, sizeof(key));
        streamer_op *op = start_held();
        struct found wrapping = find_in_memory(key, sizeof(key)), data = find_in_memory(encrypted_data_key(1), 32);
        ck_assert_uint_ge(wrapping.protected, 1);
        ck_assert_uint_ge(data.protected, 1);
        ck_assert_uint_eq(wrapping.elsewhere + data.elsewhere + find_in_memory(text, 44).elsewhere, 0);
        fuse_file_release(&hang);
        ck_assert_int_eq(client_load_end(op), 0);
        client_equals(client, "m", model);
        data = find_in_memory(encrypted_data_key(1), 32);
        ck_assert_uint_eq(data.protected + data.elsewhere, 0);
}

TEST(a_load_is_cancelled_while_it_decrypts)
{
        streamer_op *op = start_held();
        ck_assert_int_eq(client_call_code(client, "cancel", "{\"model\":\"m\"}"), 0);
        fuse_file_release(&hang);
        ck_assert_int_eq(client_load_end(op), STREAMER_ECANCELED);
        client_wait_used(client, 0);
        client_load_equals(client, hang.path, "m", model);
}
