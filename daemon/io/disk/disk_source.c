/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/io/disk/disk_source.h"

#include "daemon/base/util.h"

#include <endian.h>

#define MAGIC "strmsrc2"
#define INDEX_FLAG 1u

struct head {
        char magic[8];
        unsigned char id[DISK_ID_SIZE];
        uint64_t n;
};

struct member_head {
        unsigned char id[DISK_ID_SIZE], alone[DISK_ID_SIZE];
        uint32_t flags, folder_len;
};

struct disk_source *disk_source_new(const unsigned char id[DISK_ID_SIZE], size_t n)
{
        struct disk_source *source = calloc(1, sizeof(*source));
        if (source == NULL)
                return NULL;
        list_init(&source->link);
        list_init(&source->by_id);
        source->refs = 1;
        memcpy(source->id, id, DISK_ID_SIZE);
        source->members = calloc(n + 1, sizeof(*source->members));
        return source->members != NULL ? source : disk_source_free(source);
}

struct disk_source *disk_source_free(struct disk_source *source)
{
        if (source == NULL)
                return NULL;
        require(list_empty(&source->link) && list_empty(&source->by_id));
        for (size_t i = 0; i < source->n; i++) {
                free(source->members[i].url);
                free(source->members[i].path);
        }
        free(source->members);
        free(source);
        return NULL;
}

bool disk_source_add(struct disk_source *source, const struct disk_member *member)
{
        struct disk_member *to = &source->members[source->n];
        *to = *member;
        to->url = strdup(member->url);
        to->path = strdup(member->path);
        if (to->url != NULL && to->path != NULL) {
                source->n++;
                return true;
        }
        free(to->url);
        free(to->path);
        return false;
}

static bool members_equal(const struct disk_member *a, const struct disk_member *b)
{
        return memcmp(a->id, b->id, DISK_ID_SIZE) == 0 && memcmp(a->alone, b->alone, DISK_ID_SIZE) == 0 &&
               a->is_index == b->is_index && a->folder_len == b->folder_len && strcmp(a->url, b->url) == 0 &&
               strcmp(a->path, b->path) == 0;
}

bool disk_source_equal(const struct disk_source *a, const struct disk_source *b)
{
        bool equal = a->n == b->n && memcmp(a->id, b->id, DISK_ID_SIZE) == 0;
        for (size_t i = 0; equal && i < a->n; i++)
                equal = members_equal(&a->members[i], &b->members[i]);
        return equal;
}

struct disk_source *disk_source_alone(const struct disk_member *member)
{
        struct disk_source *source = disk_source_new(member->alone, 1);
        struct disk_member alone = *member;
        const char *slash = strrchr(member->path, '/');
        require(!member->is_index);
        /* It may lie in a folder below the source's. */
        alone.folder_len = slash != NULL ? (uint32_t)(slash + 1 - member->path) : 0;
        return source != NULL && disk_source_add(source, &alone) ? source : disk_source_free(source);
}

/* ---- the file ---- */

unsigned char *disk_source_encode(const struct disk_source *source, size_t *size)
{
        struct head head = {.magic = MAGIC, .n = htole64(source->n)};
        size_t n = sizeof(head), at = sizeof(head);
        for (size_t i = 0; i < source->n; i++)
                n += sizeof(struct member_head) + strlen(source->members[i].url) + strlen(source->members[i].path) + 2;
        unsigned char *bytes = malloc(n + DIGEST_SIZE);
        if (bytes == NULL)
                return NULL;
        memcpy(head.id, source->id, DISK_ID_SIZE);
        memcpy(bytes, &head, sizeof(head));
        for (size_t i = 0; i < source->n; i++) {
                const struct disk_member *m = &source->members[i];
                struct member_head member = {.flags = htole32(m->is_index ? INDEX_FLAG : 0),
                                             .folder_len = htole32(m->folder_len)};
                memcpy(member.id, m->id, DISK_ID_SIZE);
                memcpy(member.alone, m->alone, DISK_ID_SIZE);
                memcpy(bytes + at, &member, sizeof(member));
                at += sizeof(member);
                at += (size_t)(stpcpy((char *)bytes + at, m->url) + 1 - ((char *)bytes + at));
                at += (size_t)(stpcpy((char *)bytes + at, m->path) + 1 - ((char *)bytes + at));
        }
        require(at == n);
        hash_bytes(bytes, n, bytes + n);
        *size = n + DIGEST_SIZE;
        return bytes;
}

/* The next text, in the bytes; NULL: there is none. */
static char *take_text(const unsigned char *bytes, size_t *at, size_t end)
{
        const unsigned char *nul = *at < end ? memchr(bytes + *at, '\0', end - *at) : NULL;
        char *text = (char *)(uintptr_t)(bytes + *at);
        if (nul == NULL)
                return NULL;
        *at = (size_t)(nul + 1 - bytes);
        return text;
}

static int take_member(struct disk_source *source, const unsigned char *bytes, size_t *at, size_t end)
{
        struct member_head head;
        if (end - *at < sizeof(head))
                return STREAMER_EFAILED;
        memcpy(&head, bytes + *at, sizeof(head));
        *at += sizeof(head);
        uint32_t flags = le32toh(head.flags);
        if ((flags & ~INDEX_FLAG) != 0)
                return STREAMER_EFAILED;
        struct disk_member member = {.is_index = (flags & INDEX_FLAG) != 0,
                                     .folder_len = le32toh(head.folder_len),
                                     .url = take_text(bytes, at, end)};
        member.path = member.url != NULL ? take_text(bytes, at, end) : NULL;
        memcpy(member.id, head.id, DISK_ID_SIZE);
        memcpy(member.alone, head.alone, DISK_ID_SIZE);
        if (member.path == NULL || member.folder_len > strlen(member.path))
                return STREAMER_EFAILED;
        return disk_source_add(source, &member) ? 0 : STREAMER_ENOMEM;
}

int disk_source_decode(struct disk_source **out, const unsigned char *bytes, size_t size)
{
        struct head head;
        unsigned char digest[DIGEST_SIZE];
        if (size < sizeof(head) + DIGEST_SIZE)
                return STREAMER_EFAILED;
        size_t at = sizeof(head), end = size - DIGEST_SIZE;
        memcpy(&head, bytes, sizeof(head));
        hash_bytes(bytes, end, digest);
        uint64_t n = le64toh(head.n);
        if (memcmp(head.magic, MAGIC, sizeof(head.magic)) != 0 || memcmp(digest, bytes + end, DIGEST_SIZE) != 0 ||
            n > DISK_MEMBERS_MAX)
                return STREAMER_EFAILED;
        struct disk_source *source = disk_source_new(head.id, n);
        int r = source != NULL ? 0 : STREAMER_ENOMEM;
        for (uint64_t i = 0; r == 0 && i < n; i++)
                r = take_member(source, bytes, &at, end);
        if (r == 0 && at != end)
                r = STREAMER_EFAILED;
        if (r < 0)
                disk_source_free(source);
        else
                *out = source;
        return r;
}
