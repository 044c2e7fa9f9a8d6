/* SPDX-License-Identifier: Apache-2.0
 *
 * Encrypted files: warm loads against the cipher, cold ones against the same model in plain, and the memory that they
 * take beyond it.
 *
 * The ceiling of a warm load is what two threads decrypt, less what hashing costs: both pass over the same bytes, in
 * pieces that stay in a CPU's cache, so that their times add up.
 */
#include "tests/bench/bench.h"
#include "tests/lib/encrypted_model.h"
#include "tests/lib/kernel_counters.h"

#include <openssl/evp.h>
#include <xxhash.h>

#define PIECE ((size_t)512 << 10)
#define PIECES 2048u /* of each thread */
#define THREADS 2u

static void decrypt_pieces(void)
{
        unsigned char *bytes = must_alloc(PIECE), key[32] = {1}, nonce[12] = {2};
        EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
        int n;
        EVP_DecryptInit_ex(context, EVP_aes_256_gcm(), NULL, key, nonce);
        for (unsigned i = 0; i < PIECES; i++)
                if (EVP_DecryptInit_ex(context, NULL, NULL, NULL, nonce) != 1 ||
                    EVP_DecryptUpdate(context, bytes, &n, bytes, (int)PIECE) != 1)
                        die("OpenSSL does not decrypt");
        EVP_CIPHER_CTX_free(context);
        free(bytes);
}

static void hash_pieces(void)
{
        unsigned char *bytes = must_alloc(PIECE);
        for (unsigned i = 0; i < PIECES; i++) /* each result is needed for the next one */
                bytes[i % PIECE] = (unsigned char)XXH3_128bits(bytes, PIECE).low64;
        free(bytes);
}

static void *run_pieces(void *arg)
{
        void (*const *pieces)(void) = arg;
        (*pieces)();
        return NULL;
}

/* Of all threads together. */
static double rate_of(void (*pieces)(void))
{
        pthread_t threads[THREADS];
        uint64_t begin = clock_ns();
        for (unsigned i = 0; i < THREADS; i++)
                if (pthread_create(&threads[i], NULL, run_pieces, &pieces) != 0)
                        die("no thread");
        for (unsigned i = 0; i < THREADS; i++)
                pthread_join(threads[i], NULL);
        double gib = (double)(THREADS * PIECES) * (double)PIECE / (double)GIB;
        return gib / ((double)(clock_ns() - begin) / 1e9);
}

static double ceiling_cipher(void)
{
        double cipher = rate_of(decrypt_pieces), hash = rate_of(hash_pieces);
        report_note("two threads: aes256gcm %.2f GiB/s, XXH3-128 %.2f GiB/s", cipher, hash);
        return 1 / (1 / cipher + 1 / hash);
}

void rows_encrypted(const struct bench *b)
{
        struct bench_daemon bd;
        struct model *m = model_new(19);
        double cipher[ROUNDS_MAX], warm[ROUNDS_MAX], cold[ROUNDS_MAX], plain[ROUNDS_MAX];
        char *keys = format_text("%s/keys.json", b->folder), *path = format_text("%s/encrypted.safetensors", b->folder);
        struct load_figures f;
        struct held_file held;
        model_set_metadata(m, "{\"format\":\"pt\"}");
        model_add_many(m, "t", 64, 4 * GIB / 64 / b->shrink);
        const char *plain_path = bench_file(b, m, "plain");
        encrypted_write(&(struct encrypted_form){.version1 = false}, m, path);
        encrypted_keys_write(keys, encrypted_keys(NULL));
        bench_daemon_start(&bd, b, b->hugetlb ? "hugetlb" : "auto",
                           format_text("encryption: {keys: [\"file:%s\"]}\n", keys));
        for (unsigned i = 0; i < b->rounds; i++) {
                file_uncache(path);
                file_uncache(plain_path);
                bench_touch(&bd, m->bytes);
                bench_load(&bd, plain_path, m, false, &f);
                plain[i] = f.gib_per_s;
                bench_touch(&bd, m->bytes);
                bench_load(&bd, path, m, false, &f);
                cold[i] = f.gib_per_s;
                file_map_cached(&held, path);
                cipher[i] = ceiling_cipher();
                bench_touch(&bd, m->bytes);
                bench_load(&bd, path, m, false, &f);
                warm[i] = f.gib_per_s;
                file_release(&held);
                report_note("round %u, encrypted: plain cold %.2f GiB/s, cold %.2f, warm %.2f; %s", i + 1, plain[i],
                            cold[i], warm[i], f.stages);
        }
        double ceiling = median(cipher, b->rounds), cold_plain = median(plain, b->rounds);
        report_row(ROW_encrypted_warm_vs_cipher, median(warm, b->rounds) / ceiling, ceiling);
        report_row(ROW_encrypted_cold_vs_plain, median(cold, b->rounds) / cold_plain, cold_plain);
        bench_load(&bd, plain_path, m, true, &f);
        uint64_t memory = f.memory;
        bench_load(&bd, path, m, true, &f);
        report_row(ROW_encrypted_memory, ((double)f.memory - (double)memory) / (double)MIB, 0);
        bench_daemon_stop(&bd);
        unlink(path);
        unlink(plain_path);
        model_free(m);
}
