/* SPDX-License-Identifier: Apache-2.0
 *
 * Encrypted models from every kind of remote source, as single files and as shards with different keys and ciphers.
 */
#include "tests/integration/services_fixture.h"
#include "tests/lib/encrypted_model.h"
#include "tests/lib/streamerctl.h"

#include <fcntl.h>

static struct model *single, *sharded;

static const struct encrypted_form forms[] = {{.chunk = 65536}, {.cipher = "chacha20poly1305", .version1 = true}};

static void write_shard(const struct model *shard, size_t s, const char *path)
{
        encrypted_write(&forms[s], shard, path);
}

static void begin(void)
{
        services_begin();
        services_start();
        single = model_mixed(5, 5 << 20);
        sharded = model_mixed(6, 9 << 20);
        must(mkdir(suite_path("files/single"), 0755));
        must(mkdir(suite_path("files/damaged"), 0755));
        encrypted_write(&forms[0], single, suite_path("files/single/model.safetensors"));
        model_write_sharded_with(sharded, suite_path("files/sharded"), 2, false, write_shard);
        encrypted_write(&forms[0], single, suite_path("files/damaged/model.safetensors"));
        int fd = must(open(suite_path("files/damaged/model.safetensors"), O_RDWR | O_CLOEXEC));
        off_t last = (off_t)file_size(suite_path("files/damaged/model.safetensors")) - 1;
        unsigned char byte;
        ck_assert_int_eq(pread(fd, &byte, 1, last), 1);
        byte ^= 1;
        ck_assert_int_eq(pwrite(fd, &byte, 1, last), 1);
        close(fd);
        encrypted_keys_write(suite_path("keys.json"), encrypted_keys(NULL));
        char *config =
                suite_file("config.yaml", format_text("io: {block_size: 1MiB}\n%sencryption: {keys: [\"file:%s\"]}\n",
                                                      services_settings(server.url), suite_path("keys.json")));
        fixture_begin((const char *const[]){"--config", config, "--device", "host=128MiB", NULL});
}

/* "%s": of the folder. */
static const char *const sources[] = {"s3://near/%s/", "gs://near/%s/", "az://near/%s/", "hf://org/%s"};

static char *source_of(int kind, const char *folder)
{
        return format_text("%.*s%s%s", (int)(strstr(sources[kind], "%s") - sources[kind]), sources[kind], folder,
                           strstr(sources[kind], "%s") + 2);
}

static void encryption_is(const char *name, const char *cipher, unsigned keys)
{
        const json_t *m = client_show(client, name);
        ck_assert_str_eq(json_text(m, "encryption.cipher"), cipher);
        ck_assert_uint_eq(json_array_size(json_at(m, "encryption.keys")), keys);
        ck_assert_str_eq(json_text(m, "encryption.signer"), "signer");
}

static void loads_both(const char *one, const char *many)
{
        client_load(client, one, "one");
        client_load(client, many, "many");
        client_equals(client, "one", single);
        client_equals(client, "many", sharded);
        encryption_is("one", "aes256gcm", 1);
        encryption_is("many", "aes256gcm, chacha20poly1305", 2);
        client_unload(client, "one");
        client_unload(client, "many");
}

FIXTURE(.all = {begin, fixture_end}, .each = {fixture_connect, fixture_disconnect});

TEST(an_encrypted_model_is_loaded_from_each_store, EACH(sources))
{
        loads_both(source_of(_i, "single"), source_of(_i, "sharded"));
}

TEST(an_encrypted_model_is_loaded_from_a_web_server)
{
        loads_both(format_text("%s/web/single/model.safetensors", server.url),
                   format_text("%s/web/sharded/" INDEX, server.url));
}

TEST(a_damaged_encrypted_model_of_a_store_is_refused, EACH(sources))
{
        uint64_t used = client_used(client);
        client_load_fails(client, source_of(_i, "damaged"), "m", STREAMER_EFAILED, "does not match its tag");
        client_wait_used(client, used);
        client_unload(client, "m");
}

TEST(a_dry_run_looks_for_the_keys_of_a_store, EACH(sources))
{
        ctl_says(test_daemon.socket, 0, "  encrypted aes256gcm, key aes256gcm, signed by signer\n", "load", "--dry-run",
                 source_of(_i, "single"), NULL);
}
