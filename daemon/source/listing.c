/* SPDX-License-Identifier: Apache-2.0
 *
 * An index or model file that is listed and cannot be opened is an error later: falling back to other files would load
 * another model than the folder holds.
 */
#include "daemon/source/listing.h"

#include "daemon/base/util.h"
#include "daemon/source/source.h"
#include "daemon/source/sums.h"
#include "proto/codec.h"

/* ---- names ---- */

int sidecar_check_name(const char *name, struct error *error)
{
        if (strlen(name) > SIDECAR_NAME_MAX)
                return error_set(error, STREAMER_EINVAL, "the file's name is longer than %d bytes", SIDECAR_NAME_MAX);
        for (const char *at = name;; at++) {
                size_t len = strcspn(at, "/");
                bool dots = (len == 1 || len == 2) && strspn(at, ".") >= len;
                if (len == 0 || dots)
                        return error_set(error, STREAMER_EINVAL,
                                         "'%s': not the name of a file beside the weights: it is relative, without "
                                         "empty, '.' or '..' components",
                                         name);
                at += len;
                if (*at == '\0')
                        return 0;
        }
}

static bool is_sidecar(const char *name, bool with_weights)
{
        static const char *const weights[] = {".safetensors", ".bin", ".ckpt",      ".gguf", ".h5",  ".msgpack",
                                              ".onnx",        ".ot",  ".onnx_data", ".pt",   ".pth", ".tflite"};
        const char *suffix = strrchr(name, '.') ?: "";
        struct error ignored;
        for (size_t i = 0; i < ARRAY_SIZE(weights); i++)
                if (!with_weights && strcmp(suffix, weights[i]) == 0)
                        return false;
        return name[0] != '.' && strstr(name, "/.") == NULL && codec_utf8(name, strlen(name)) &&
               sidecar_check_name(name, &ignored) == 0;
}

/* ---- lists ---- */

static void file_deinit(struct listed_file *file)
{
        free(file->name);
        free(file->tag);
}

/* Names with a dot in front are not data: "._model.safetensors" is macOS's resource fork. */
static bool is_weights(const char *name)
{
        return name[0] != '.' && source_stem_len(name, strlen(name)) < strlen(name);
}

bool listing_takes(const struct listing *list, const char *name)
{
        if (list->sidecars)
                return is_sidecar(name, list->weights);
        return strchr(name, '/') == NULL && (source_is_index(name) || is_weights(name));
}

int listing_add(struct listing *list, const char *name, uint64_t bytes, const char *tag, struct error *error)
{
        bool is_index = !list->sidecars && source_is_index(name);
        size_t max = list->sidecars ? SIDECAR_FILES_MAX : SOURCE_FILES_MAX + list->n_indexes;
        list->has_sums |= strcmp(name, SUMS_NAME) == 0;
        if (!listing_takes(list, name) || (is_index && list->n_indexes == LISTING_INDEXES_MAX))
                return 0;
        if (!is_index && list->n == max)
                return error_set(error, STREAMER_EFAILED, "more than %u %s (%s)",
                                 list->sidecars ? SIDECAR_FILES_MAX : SOURCE_FILES_MAX,
                                 list->sidecars ? "files beside the weights" : "safetensors files", list->shown);
        struct listed_file *v = array_grow(list->v, list->n, sizeof(*v));
        if (v == NULL)
                return error_no_memory(error);
        list->v = v;
        v[list->n] = (struct listed_file){strdup(name), strdup(tag), bytes};
        if (v[list->n].name == NULL || v[list->n].tag == NULL) {
                file_deinit(&v[list->n]);
                return error_no_memory(error);
        }
        list->n++;
        list->n_indexes += is_index;
        return 0;
}

static int compare(const void *a, const void *b)
{
        return strcmp(((const struct listed_file *)a)->name, ((const struct listed_file *)b)->name);
}

void listing_sort(struct listing *list)
{
        if (list->n > 0)
                qsort(list->v, list->n, sizeof(*list->v), compare);
}

const struct listed_file *listing_find(const struct listing *list, const char *name)
{
        const struct listed_file key = {.name = (char *)(uintptr_t)name};
        return list->n > 0 ? bsearch(&key, list->v, list->n, sizeof(key), compare) : NULL;
}

void listing_deinit(struct listing *list)
{
        for (size_t i = 0; i < list->n; i++)
                file_deinit(&list->v[i]);
        for (size_t i = 0; i < list->n_left_out; i++)
                file_deinit(&list->left_out[i]);
        free(list->v);
        free(list->left_out);
        *list = (struct listing){.shown = list->shown, .sidecars = list->sidecars, .weights = list->weights};
}

int listing_report(const struct listing *list, struct source_set *set, struct error *error)
{
        int r = 0;
        for (size_t i = 0; r == 0 && i < list->n_left_out; i++)
                if (codec_utf8(list->left_out[i].name, strlen(list->left_out[i].name)))
                        r = source_set_leave_out(set, list->left_out[i].name, error);
        return r;
}

/* ---- sets: X-0000i-of-0000n, with any digits, and with '_' or '.' for any '-' ---- */

#define DIGITS_MAX 9

struct part {
        size_t stem;   /* length of X, which is the whole stem of a name that is of no set */
        size_t prefix; /* the same with the separator behind it */
        unsigned long i, n;
        int digits;     /* of i; 0: of no set */
        bool padded;    /* i begins with 0, so all of the set have as many digits */
        const char *of; /* the text from "-of-" on */
};

static size_t digits_before(const char *text, size_t end)
{
        size_t n = 0;
        while (n < end && text[end - n - 1] >= '0' && text[end - n - 1] <= '9')
                n++;
        return n;
}

static bool is_separator(char c)
{
        return c == '-' || c == '_' || c == '.';
}

static bool ends_with_of(const char *name, size_t end)
{
        static const char of[] = "-of-";
        const char *text = name + end - strlen(of);
        return end >= strlen(of) && is_separator(text[0]) && memcmp(text + 1, "of", 2) == 0 && is_separator(text[3]);
}

static struct part part_of(const char *name)
{
        size_t end = source_stem_len(name, strlen(name));
        struct part none = {.stem = end}, part;
        size_t digits = digits_before(name, end), at = end - digits;
        if (digits == 0 || digits > DIGITS_MAX || !ends_with_of(name, at))
                return none;
        part.n = strtoul(name + at, NULL, 10);
        at -= strlen("-of-");
        part.of = name + at;
        digits = digits_before(name, at);
        at -= digits;
        if (digits == 0 || digits > DIGITS_MAX || at < 2 || !is_separator(name[at - 1]))
                return none;
        part.digits = (int)digits;
        part.padded = name[at] == '0';
        part.i = strtoul(name + at, NULL, 10);
        part.prefix = at;
        part.stem = at - 1;
        return part.i <= part.n ? part : none;
}

/* The file i of the set to which `name` belongs, with so many digits. NULL: no memory. */
static char *name_in_set(const char *name, const struct part *part, unsigned long i, int digits)
{
        return format_new("%.*s%0*lu%s", (int)part->prefix, name, digits, i, part->of);
}

static int is_listed(const struct listing *list, const char *name, const struct part *part, unsigned long i, int digits,
                     struct error *error)
{
        cleanup_free char *other = name_in_set(name, part, i, digits);
        return other != NULL ? listing_find(list, other) != NULL : error_no_memory(error);
}

/* 1: it is listed; 0: it is not; or STREAMER_ENOMEM. */
static int set_has(const struct listing *list, const char *name, const struct part *part, unsigned long i,
                   struct error *error)
{
        int r = is_listed(list, name, part, i, part->digits, error);
        bool may_be_shorter = r == 0 && !part->padded; /* "9" before "10" */
        return may_be_shorter ? is_listed(list, name, part, i, 1, error) : r;
}

/* Has the file before it, and the one after it. A set counts from 1, or from 0. */
static int check_neighbours(const struct listing *list, const char *name, struct error *error)
{
        const struct part part = part_of(name);
        unsigned long missing = part.i - 1;
        if (part.digits == 0)
                return 0;
        int r = part.i > 1 ? set_has(list, name, &part, missing, error) : 1;
        if (r == 1 && part.i < part.n) {
                missing = part.i + 1;
                r = set_has(list, name, &part, missing, error);
                if (r == 0 && missing == part.n)
                        r = set_has(list, name, &part, 0, error);
        }
        if (r != 0)
                return r < 0 ? r : 0;
        cleanup_free char *other = name_in_set(name, &part, missing, part.digits);
        return other == NULL ? error_no_memory(error)
                             : error_set(error, STREAMER_EFAILED, "%s is missing: an incomplete download? (%s)", other,
                                         list->shown);
}

/* ---- variants ---- */

/* The length of what comes before ".fp16" at the end of a stem; 0: it does not end in a variant. */
static size_t before_variant(const char *name, size_t end)
{
        static const char *const variants[] = {"fp16", "bf16", "fp32",  "fp8",   "fp4", "f16",     "f32",  "int8",
                                               "int4", "nf4",  "nvfp4", "mxfp4", "ema", "non_ema", "8bit", "4bit"};
        size_t dot = end;
        while (dot > 0 && name[dot - 1] != '.')
                dot--;
        for (size_t i = 0; dot > 1 && i < ARRAY_SIZE(variants); i++) {
                size_t len = strlen(variants[i]);
                if (end - dot >= len && memcmp(name + dot, variants[i], len) == 0 &&
                    (end - dot == len || name[dot + len] == '_'))
                        return dot - 1;
        }
        return 0;
}

/* The same of a file: "model" of "model.fp16-00001-of-00002", "model-00001-of-00002" of "model-00001-of-00002.fp16". */
static size_t original_len(const char *name)
{
        return before_variant(name, part_of(name).stem);
}

/* Files of the same model are listed under this name without a variant. */
static bool has_original(const struct listing *list, const char *name)
{
        size_t len = original_len(name);
        for (size_t i = 0; len > 0 && i < list->n; i++) {
                const char *other = list->v[i].name;
                bool same = (part_of(other).stem == len || source_stem_len(other, strlen(other)) == len) &&
                            memcmp(other, name, len) == 0;
                if (same && is_weights(other))
                        return true;
        }
        return false;
}

/* ---- the model ---- */

/* The files of lowest rank are the model: original weights in another layout (consolidated) and
 * adapters are one only where there is nothing else. */
static int rank(const char *name)
{
        if (strcmp(name, LISTING_WHOLE) == 0)
                return 0;
        if (strncmp(name, "consolidated", strlen("consolidated")) == 0)
                return 2;
        if (strncmp(name, "adapter_model", strlen("adapter_model")) == 0)
                return 3;
        return 1;
}

/* Nobody asks what has become of it: it is of a variant, or of another layout. */
static bool is_unused_index(const struct listing *list, const char *name)
{
        return source_is_index(name) && name != list->stale;
}

static int leave_out(struct listing *list, struct listed_file file, struct error *error)
{
        struct listed_file *v = array_grow(list->left_out, list->n_left_out, sizeof(*v));
        if (v == NULL)
                return error_no_memory(error);
        list->left_out = v;
        v[list->n_left_out++] = file;
        return 0;
}

/* Keeps those that `keep` marks, and leaves the other weights out. */
static int keep_only(struct listing *list, const bool *keep, struct error *error)
{
        size_t n = list->n, kept = 0;
        int r = 0;
        for (size_t i = 0; i < n; i++) {
                struct listed_file file = list->v[i];
                if (!keep[i] && is_unused_index(list, file.name))
                        file_deinit(&file);
                else if (keep[i] || r < 0 || (r = leave_out(list, file, error)) < 0)
                        list->v[kept++] = file;
        }
        list->n = kept;
        return r;
}

/* Neither an index of a variant, nor that of original weights in another layout. */
static bool is_main_index(const char *name)
{
        static const char suffix[] = SOURCE_SUFFIX ".index.json";
        size_t len = strlen(name);
        return source_ends_with(name, len, suffix) && before_variant(name, len - strlen(suffix)) == 0 &&
               strncmp(name, "consolidated", strlen("consolidated")) != 0;
}

/* The one of the most frequent name, else the first. */
static const char *choose_index(const struct listing *list)
{
        const struct listed_file *best = listing_find(list, LISTING_INDEX);
        for (size_t i = 0; best == NULL && list->n_indexes > 0 && i < list->n; i++)
                if (is_main_index(list->v[i].name))
                        best = &list->v[i];
        return best != NULL ? best->name : NULL;
}

/* Without an index. */
static int choose_files(struct listing *list, const char *where, struct error *error)
{
        int best = 4;
        cleanup_free bool *keep = calloc(list->n + 1, sizeof(*keep));
        if (keep == NULL)
                return error_no_memory(error);
        for (size_t i = 0; i < list->n; i++)
                if (!source_is_index(list->v[i].name) && rank(list->v[i].name) < best)
                        best = rank(list->v[i].name);
        if (best == 4)
                return error_set(error, STREAMER_ENOENT, "no safetensors files %s (%s)", where, list->shown);
        for (size_t i = 0; i < list->n; i++) {
                const char *name = list->v[i].name;
                keep[i] = !source_is_index(name) && rank(name) == best && !has_original(list, name);
        }
        int r = keep_only(list, keep, error);
        for (size_t i = 0; r == 0 && i < list->n; i++)
                r = check_neighbours(list, list->v[i].name, error);
        return r;
}

int listing_choose(struct listing *list, const char *where, struct error *error)
{
        listing_sort(list);
        list->index = choose_index(list);
        return list->index != NULL ? 0 : choose_files(list, where, error);
}

int listing_take_index(struct listing *list, const struct st_index *index, struct error *error)
{
        cleanup_free bool *keep = calloc(list->n + 1, sizeof(*keep));
        bool exists = false; /* one of its files */
        if (keep == NULL)
                return error_no_memory(error);
        require(list->index != NULL);
        for (size_t i = 0; i < index->n_files; i++) {
                const char *name = st_index_file(index, i);
                const struct listed_file *file = listing_find(list, name);
                exists = exists || file != NULL || strchr(name, '/') != NULL;
                if (file != NULL)
                        keep[file - list->v] = true;
        }
        const struct listed_file *file = listing_find(list, exists ? list->index : LISTING_WHOLE);
        if (file != NULL) {
                keep[file - list->v] = true;
                list->stale = exists ? NULL : list->index;
                list->index = exists ? file->name : NULL;
        }
        return file != NULL || exists ? keep_only(list, keep, error) : 0;
}
