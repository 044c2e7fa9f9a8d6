/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/load/content/resolve.h"

#include "daemon/base/hash.h"
#include "daemon/base/log/log.h"
#include "daemon/base/crc32c.h"
#include "daemon/base/sys/machine.h"
#include "daemon/base/util.h"
#include "daemon/io/http/http.h"

#include <errno.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <strings.h>
#include <sys/mman.h>

/* Files whose headers are read at once: limits the memory for bytes beyond them. */
#define HEADERS_AT_ONCE HTTP_PARALLEL

/* ---- memory ---- */

/* Of a tensor, in the tables of headers, plan, names and arrivals; and while a header is parsed. */
#define TENSOR_BYTES 128
/* The shortest text of one. */
#define TENSOR_TEXT 48
/* Of a leaf: its digest; and of a block. */
#define LEAF_BYTES DIGEST_SIZE
#define BLOCK_BYTES sizeof(struct plan_block)

static int take(struct resolve_budget *budget, uint64_t bytes, struct error *error)
{
        struct quota_charge *charge = &budget->charge;
        if (bytes > RESOLVE_BYTES_MAX - budget->bytes)
                return error_set(error, STREAMER_ELIMIT,
                                 "its headers and tables of tensors would take more than %" PRIu64 " MiB",
                                 RESOLVE_BYTES_MAX / MiB);
        if (charge->user != NULL && !quota_raise_share(charge, bytes, budget->user_max))
                return error_set(error, STREAMER_ELIMIT,
                                 "uid %u has %" PRIu64 " of %" PRIu64
                                 " bytes of headers of loads under way, and %" PRIu64 " more are needed",
                                 (unsigned)charge->user->uid, load_relaxed(&charge->user->held[charge->slot]),
                                 budget->user_max, bytes);
        budget->bytes += bytes;
        return 0;
}

static void give_back(struct resolve_budget *budget, uint64_t bytes)
{
        require(bytes <= budget->bytes);
        budget->bytes -= bytes;
        quota_adjust(&budget->charge, budget->charge.user != NULL ? budget->bytes : 0);
}

/* ---- headers ---- */

static int text_grow(struct header_text *text, uint64_t size, struct error *error)
{
        size = round_up(size, machine_pages.small);
        if (size == text->size)
                return 0;
        void *map = text->map == NULL ? mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                                      : mremap(text->map, text->size, size, MREMAP_MAYMOVE);
        if (map == MAP_FAILED)
                return error_errno(error, STREAMER_ENOMEM, errno, "header of %" PRIu64 " bytes", size);
        text->map = map;
        text->size = size;
        return 0;
}

/* What breaks the first rules is a file of another format rather than a damaged one. */
static bool is_foreign(enum st_rule rule)
{
        return rule == ST_FILE_TOO_SMALL || rule == ST_HEADER_TOO_LARGE || rule == ST_HEADER_BEYOND_FILE ||
               rule == ST_NOT_JSON || rule == ST_NOT_UTF8;
}

/* What the file is, by its first bytes; NULL: not known. */
static const char *format_of(const unsigned char *bytes, uint64_t n)
{
        static const struct {
                const char *begins, *what;
        } formats[] = {
                {"version https://git-lfs", "a Git LFS pointer: the weights were not downloaded ('git lfs pull')"},
                {"<!DOCTYPE", "an HTML page, as a server sends it in place of a file"},
                {"<html", "an HTML page, as a server sends it in place of a file"},
                {"<?xml", "an XML document, as a store sends it in place of a file"},
                {"GGUF", "a GGUF file"},
                {"PK\x03\x04", "a zip archive, as torch.save() writes it"},
                {"\x89HDF", "an HDF5 file"},
                {"{\"", "JSON text"},
                {"{\n", "JSON text"},
                {"{\r\n", "JSON text"},
                {"{ ", "JSON text"},
        };
        while (n > 0 && (bytes[0] == '\n' || bytes[0] == '\r')) {
                bytes++;
                n--;
        }
        for (size_t i = 0; i < ARRAY_SIZE(formats); i++)
                if (n >= strlen(formats[i].begins) &&
                    strncasecmp((const char *)bytes, formats[i].begins, strlen(formats[i].begins)) == 0)
                        return formats[i].what;
        /* The protocol, and the first instruction. */
        return n > 2 && bytes[0] == 0x80 && bytes[1] >= 2 && bytes[1] <= 5 && bytes[2] != 0
                       ? "a pickle, as torch.save() writes it"
                       : NULL;
}

static int bad_file(const struct object *object, const struct header_text *text, const struct st_error *st,
                    struct error *error)
{
        int code = st->rule == ST_NO_MEMORY ? STREAMER_ENOMEM : STREAMER_EFAILED;
        const char *format = is_foreign(st->rule) ? format_of(text->map, object->first_read) : NULL;
        if (format != NULL)
                return error_set(error, code, "not a safetensors file: it is %s (%s)", format, object->path);
        return error_set(error, code, "%s%s (%s)", is_foreign(st->rule) ? "not a safetensors file: " : "", st->text,
                         object->path);
}

/* The rest of a header that the first read did not cover; else surplus pages are freed, unless a file that the read
 * brought whole is to stay so. */
static int rest_range(struct resolved *resolved, size_t i, bool stays, struct object_range *range,
                      struct resolve_budget *budget, struct error *error)
{
        const struct object *object = &resolved->set.objects[i];
        struct header_text *text = &resolved->texts[i];
        uint64_t first = object->first_read;
        struct st_error st;
        if (st_parse_prefix(text->map, object->version.size, &text->n, &st) < 0)
                return bad_file(object, text, &st, error);
        uint64_t whole = ST_PREFIX + text->n, kept = stays && object_is_read(object) ? first : whole;
        int r = take(budget, kept, error) ?: text_grow(text, kept, error);
        *range = (struct object_range){object, first, whole > first ? whole - first : 0, text->map + first};
        return r;
}

/* One round for the first bytes of several files and one for longer headers: a store gets all requests at once. */
static int read_headers(struct resolved *resolved, size_t from, size_t to, bool whole, struct resolve_budget *budget,
                        struct error *error)
{
        struct object_range ranges[HEADERS_AT_ONCE] = {{.object = NULL}};
        int r = 0;
        require(from < to && to - from <= HEADERS_AT_ONCE);
        for (size_t i = from; r == 0 && i < to; i++) {
                const struct object *object = &resolved->set.objects[i];
                uint64_t first = object->first_read;
                r = text_grow(&resolved->texts[i], first > 0 ? first : 1, error);
                ranges[i - from] = (struct object_range){object, 0, first, resolved->texts[i].map};
        }
        if (r == 0)
                r = object_read_ranges(ranges, to - from, error);
        for (size_t i = from; r == 0 && i < to; i++)
                r = rest_range(resolved, i, whole, &ranges[i - from], budget, error);
        return r < 0 ? r : object_read_ranges(ranges, to - from, error);
}

static int hash_header(struct header_text *text, struct error *error)
{
        text->sha256 = EVP_MD_CTX_new();
        if (text->sha256 == NULL || EVP_DigestInit_ex(text->sha256, EVP_sha256(), NULL) != 1 ||
            EVP_DigestUpdate(text->sha256, text->map, ST_PREFIX + text->n) != 1)
                return error_set(error, STREAMER_ENOMEM, "SHA-256 could not be set up");
        text->crc32c = crc32c(0, text->map, ST_PREFIX + text->n);
        return 0;
}

/* ---- which tensors of a file belong to the model ---- */

/* Removes the tensors of file i that the index takes from another file; marks in `found` its entries that are here.
 * Tensors that it does not list stay: tools that add tensors to a file forget the index. */
static void apply_index(struct st_header *header, struct encrypted_file *encrypted, size_t i,
                        const struct st_index *index, bool *found)
{
        size_t n = header->n_tensors;
        header->n_tensors = 0;
        for (size_t t = 0; t < n; t++) {
                const struct st_tensor tensor = header->tensors[t];
                const struct st_index_entry *entry = st_index_find(index, st_name(header, &tensor), tensor.name_len);
                if (entry != NULL && entry->file != i)
                        continue;
                if (entry != NULL)
                        found[entry - index->entries] = true;
                if (encrypted != NULL)
                        encrypted->tensors[header->n_tensors] = encrypted->tensors[t];
                header->tensors[header->n_tensors++] = tensor;
        }
}

/* An entry without a tensor is reported, as the engine knows which tensors it needs; but a file without any of its
 * tensors is another one than the index names. */
static int check_entries(struct resolved *resolved, const bool *found, struct error *error)
{
        const struct st_index *index = &resolved->set.index;
        const char *path = resolved->set.index_object.path;
        cleanup_free bool *provides = calloc(index->n_files + 1, sizeof(*provides));
        const struct st_index_entry *first = NULL, *end = index->entries + index->n_entries;
        if (provides == NULL)
                return error_no_memory(error);
        for (const struct st_index_entry *e = index->entries; e < end; e++)
                provides[e->file] = provides[e->file] || found[e - index->entries];
        for (const struct st_index_entry *e = index->entries; e < end; e++) {
                if (found[e - index->entries])
                        continue;
                if (!provides[e->file])
                        return error_set(error, STREAMER_EFAILED, "tensor '%s' is in the index but not in %s (%s)",
                                         index->text + e->name, st_index_file(index, e->file), path);
                first = first != NULL ? first : e;
                if (resolved->notes != NULL && source_notes_add_missing(resolved->notes, index->text + e->name) < 0)
                        return error_no_memory(error);
        }
        if (first != NULL && resolved->notes != NULL)
                log_warn("%" PRIu64 " tensors of the index are not in its files, the first of them '%s' (%s)",
                         resolved->notes->n_missing, index->text + first->name, path);
        return 0;
}

/* ---- all of it ---- */

/* Whether file i is encrypted, which its metadata says, and may be loaded. */
static int read_encryption(struct resolved *resolved, size_t i, const struct signed_text *checked,
                           const struct resolve_opts *opts, struct resolve_budget *budget, struct error *error)
{
        const char *path = resolved->set.objects[i].path;
        struct plan_file *file = &resolved->files[i];
        struct encrypted_file **encrypted = &resolved->encrypted[i];
        struct error why = {0};
        int r = encrypted_file_read(encrypted, &file->header, checked, opts->keyring, &why);
        resolved->refused = r < 0;
        if (r == 0 && *encrypted == NULL && opts->encrypted_only != NULL)
                r = error_set(&why, STREAMER_EPERM, "not encrypted, and only encrypted files are loaded: %s",
                              opts->encrypted_only);
        if (r == 0 && *encrypted != NULL && opts->sha256)
                r = error_set(&why, STREAMER_EUNSUPPORTED,
                              "encrypted: published SHA-256 digests are of what is stored, and the signature and tags "
                              "are checked instead; load it without verify");
        if (r < 0)
                return error_set(error, r, "%s (%s)", why.text, path);
        file->chunk = *encrypted != NULL ? (*encrypted)->chunk : 0;
        return *encrypted != NULL ? take(budget, file->header.n_tensors * sizeof(struct encrypted_tensor), error) : 0;
}

/* Parses header i, whose tables are taken from the budget at their largest before, and as they are afterwards. */
static int parse(struct resolved *resolved, size_t i, const struct resolve_opts *opts, struct resolve_budget *budget,
                 struct error *error)
{
        const struct object *object = &resolved->set.objects[i];
        struct header_text *text = &resolved->texts[i];
        struct st_header *header = &resolved->files[i].header;
        uint64_t most = (text->n / TENSOR_TEXT + 1) * TENSOR_BYTES;
        struct st_error st;
        struct signed_text checked;
        int r = take(budget, most, error);
        if (r < 0)
                return r;
        signed_text_check(&checked, (char *)text->map + ST_PREFIX, text->n, opts->keyring);
        if (st_parse(header, (char *)text->map + ST_PREFIX, text->n, object->version.size, &st) < 0)
                return bad_file(object, text, &st, error);
        uint64_t tables = (header->n_tensors + header->n_metadata) * TENSOR_BYTES;
        give_back(budget, tables < most ? most - tables : 0);
        return read_encryption(resolved, i, &checked, opts, budget, error);
}

/* For the plan's blocks and the digests of leaves, which follow from the bytes of tensors. */
static int take_plan(const struct resolved *resolved, uint64_t block_size, struct resolve_budget *budget,
                     struct error *error)
{
        uint64_t leaves = 0, blocks = 0;
        for (size_t i = 0; i < resolved->set.n_objects; i++) {
                const struct plan_file *file = &resolved->files[i];
                const struct st_header *header = &file->header;
                for (size_t t = 0; t < header->n_tensors; t++)
                        leaves += plan_leaves(header->tensors[t].end - header->tensors[t].begin);
                /* Where blocks end with chunks, they are more than half as long as they may be. */
                blocks += 1 + (file->chunk > 0 ? 2 : 1) * (resolved->set.objects[i].version.size / block_size);
        }
        if (leaves > RESOLVE_BYTES_MAX || blocks > RESOLVE_BYTES_MAX) /* so that nothing below can overflow */
                leaves = RESOLVE_BYTES_MAX;
        return take(budget, leaves * LEAF_BYTES + (blocks < leaves ? blocks : leaves) * BLOCK_BYTES, error);
}

int resolve_plan(struct resolved *resolved, const struct resolve_opts *opts, struct resolve_budget *budget,
                 struct error *error)
{
        struct source_set *set = &resolved->set;
        const struct st_index *index = &set->index;
        size_t n = set->n_objects;
        cleanup_free bool *found = calloc(index->n_entries + 1, sizeof(*found));
        resolved->texts = calloc(n, sizeof(*resolved->texts));
        resolved->files = calloc(n, sizeof(*resolved->files));
        resolved->encrypted = calloc(n, sizeof(*resolved->encrypted));
        if (found == NULL || resolved->texts == NULL || resolved->files == NULL || resolved->encrypted == NULL)
                return error_no_memory(error);
        struct plan_names names = {.n_files = 0};
        int r = take(budget, (index->n_entries + n) * TENSOR_BYTES, error);
        for (size_t i = 0; r == 0 && i < n; i++) {
                size_t left = n - i;
                if (i % HEADERS_AT_ONCE == 0)
                        r = read_headers(resolved, i, i + (left < HEADERS_AT_ONCE ? left : HEADERS_AT_ONCE),
                                         opts->whole, budget, error);
                const struct object *object = &set->objects[i];
                struct header_text *text = &resolved->texts[i];
                struct plan_file *file = &resolved->files[i];
                file->path = object->path;
                if (r == 0 && opts->sha256)
                        r = hash_header(text, error);
                if (r == 0)
                        r = parse(resolved, i, opts, budget, error);
                if (r == 0 && index->n_files > 0)
                        apply_index(&file->header, resolved->encrypted[i], i, index, found);
                if (r == 0)
                        r = plan_names_add(&names, resolved->files, error);
        }
        plan_names_deinit(&names);
        if (r < 0)
                return r;
        if (index->n_files > 0 && check_entries(resolved, found, error) < 0)
                return error->code;
        r = take_plan(resolved, opts->block_size, budget, error)
                    ?: encryption_new(&resolved->encryption, resolved->encrypted, n, error);
        return r < 0 ? r : plan_make(&resolved->plan, resolved->files, n, opts->layout, opts->block_size, error);
}

void resolve_drop_texts(struct resolved *resolved)
{
        for (size_t i = 0; resolved->texts != NULL && i < resolved->set.n_objects; i++) {
                struct header_text *text = &resolved->texts[i];
                if (text->map != NULL)
                        munmap(text->map, text->size);
                text->map = NULL;
        }
}

void resolve_deinit(struct resolved *resolved)
{
        resolve_drop_texts(resolved);
        plan_deinit(&resolved->plan);
        for (size_t i = 0; i < resolved->set.n_objects; i++) {
                if (resolved->files != NULL)
                        st_header_deinit(&resolved->files[i].header);
                if (resolved->encrypted != NULL)
                        encrypted_file_free(resolved->encrypted[i]);
                if (resolved->texts != NULL)
                        EVP_MD_CTX_free(resolved->texts[i].sha256);
        }
        free(resolved->texts);
        free(resolved->files);
        free(resolved->encrypted);
        encryption_free(resolved->encryption);
        if (!resolved->borrowed)
                source_set_deinit(&resolved->set);
        *resolved = (struct resolved){0};
}
