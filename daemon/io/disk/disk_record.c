/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/io/disk/disk_record.h"

#include "daemon/base/error.h"
#include "daemon/base/util.h"

#include <endian.h>

#define MAGIC "strmdsk1"
#define TEXTS 3u

struct head {
        char magic[8];
        uint64_t n; /* bytes of the head and the texts, without their digest */
        unsigned char id[DISK_ID_SIZE], place[DISK_ID_SIZE];
        uint64_t size, header, stored_s, n_sums;
        unsigned char header_sum[DIGEST_SIZE], sums_sum[DIGEST_SIZE];
};
_Static_assert(sizeof(struct head) + TEXTS * DISK_RECORD_TEXT + DIGEST_SIZE <= DISK_RECORD_HEAD_MAX,
               "a scan reads the whole head");

/* In the order of the file. */
static const char *const *texts_of(const struct disk_record *record, const char *texts[TEXTS])
{
        texts[0] = record->shown;
        texts[1] = record->etag;
        texts[2] = record->modified;
        return texts;
}

static size_t head_size(const struct disk_record *record)
{
        const char *texts[TEXTS];
        size_t n = sizeof(struct head);
        texts_of(record, texts);
        for (size_t i = 0; i < TEXTS; i++)
                n += strlen(texts[i]) + 1;
        return n;
}

uint64_t disk_record_size(const struct disk_record *record)
{
        return head_size(record) + DIGEST_SIZE + record->n_sums * DIGEST_SIZE;
}

unsigned char *disk_record_encode(const struct disk_record *record, size_t *size)
{
        const char *texts[TEXTS];
        size_t n = head_size(record), sums = record->n_sums * DIGEST_SIZE, at = sizeof(struct head);
        texts_of(record, texts);
        require(record->n_sums <= DISK_RECORD_SUMS_MAX && record->header <= record->size);
        *size = 0;
        for (size_t i = 0; i < TEXTS; i++)
                if (strlen(texts[i]) >= DISK_RECORD_TEXT)
                        return NULL;
        unsigned char *bytes = malloc(n + DIGEST_SIZE + sums);
        if (bytes == NULL)
                return NULL;
        struct head head = {.magic = MAGIC,
                            .n = htole64(n),
                            .size = htole64(record->size),
                            .header = htole64(record->header),
                            .stored_s = htole64(record->stored_s),
                            .n_sums = htole64(record->n_sums)};
        memcpy(head.id, record->id, sizeof(head.id));
        memcpy(head.place, record->place, sizeof(head.place));
        memcpy(head.header_sum, record->header_sum, sizeof(head.header_sum));
        hash_bytes(record->sums, sums, head.sums_sum);
        memcpy(bytes, &head, sizeof(head));
        for (size_t i = 0; i < TEXTS; at += strlen(texts[i++]) + 1)
                strcpy((char *)bytes + at, texts[i]);
        require(at == n);
        hash_bytes(bytes, n, bytes + n);
        if (sums > 0)
                memcpy(bytes + n + DIGEST_SIZE, record->sums, sums);
        *size = n + DIGEST_SIZE + sums;
        return bytes;
}

/* The next text, up to `end`. */
static int take_text(char **text, const unsigned char *bytes, size_t *at, size_t end)
{
        const unsigned char *nul = *at < end ? memchr(bytes + *at, '\0', end - *at) : NULL;
        if (nul == NULL)
                return STREAMER_EFAILED;
        *text = strdup((const char *)bytes + *at);
        *at = (size_t)(nul + 1 - bytes);
        return *text != NULL ? 0 : STREAMER_ENOMEM;
}

/* Also what the digest of the leaves' digests must be. */
static int decode_head(struct disk_record *record, const unsigned char *bytes, size_t n, size_t *end,
                       unsigned char sums_sum[DIGEST_SIZE])
{
        struct head head;
        unsigned char digest[DIGEST_SIZE];
        *record = (struct disk_record){.size = 0};
        if (n < sizeof(head))
                return STREAMER_EFAILED;
        memcpy(&head, bytes, sizeof(head));
        uint64_t len = le64toh(head.n);
        if (memcmp(head.magic, MAGIC, sizeof(head.magic)) != 0 || len < sizeof(head) ||
            len > DISK_RECORD_HEAD_MAX - DIGEST_SIZE || len + DIGEST_SIZE > n)
                return STREAMER_EFAILED;
        hash_bytes(bytes, len, digest);
        if (memcmp(digest, bytes + len, DIGEST_SIZE) != 0)
                return STREAMER_EFAILED;
        memcpy(record->id, head.id, sizeof(head.id));
        memcpy(record->place, head.place, sizeof(head.place));
        memcpy(record->header_sum, head.header_sum, sizeof(head.header_sum));
        memcpy(sums_sum, head.sums_sum, DIGEST_SIZE);
        record->size = le64toh(head.size);
        record->header = le64toh(head.header);
        record->stored_s = le64toh(head.stored_s);
        record->n_sums = le64toh(head.n_sums);
        size_t at = sizeof(head);
        int r = take_text(&record->shown, bytes, &at, len)
                        ?: take_text(&record->etag, bytes, &at, len)
                        ?: take_text(&record->modified, bytes, &at, len);
        *end = len + DIGEST_SIZE;
        if (r == 0 && (at != len || record->header > record->size || record->n_sums > DISK_RECORD_SUMS_MAX))
                r = STREAMER_EFAILED;
        return r;
}

int disk_record_decode_head(struct disk_record *record, const unsigned char *bytes, size_t n)
{
        size_t end;
        unsigned char sums_sum[DIGEST_SIZE];
        return decode_head(record, bytes, n, &end, sums_sum);
}

int disk_record_decode(struct disk_record *record, const unsigned char *bytes, size_t n)
{
        size_t end;
        unsigned char sums_sum[DIGEST_SIZE], digest[DIGEST_SIZE];
        int r = decode_head(record, bytes, n, &end, sums_sum);
        if (r < 0)
                return r;
        if (n - end != record->n_sums * DIGEST_SIZE)
                return STREAMER_EFAILED;
        hash_bytes(bytes + end, n - end, digest);
        if (memcmp(digest, sums_sum, DIGEST_SIZE) != 0)
                return STREAMER_EFAILED;
        record->sums = malloc(n - end + 1);
        if (record->sums == NULL)
                return STREAMER_ENOMEM;
        if (n > end)
                memcpy(record->sums, bytes + end, n - end);
        return 0;
}

void disk_record_deinit(struct disk_record *record)
{
        free(record->shown);
        free(record->etag);
        free(record->modified);
        free(record->sums);
        *record = (struct disk_record){.size = 0};
}
