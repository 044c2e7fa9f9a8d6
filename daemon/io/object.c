/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/io/object.h"

#include <stdlib.h>

void object_deinit(struct object *object)
{
        if (object->ops != NULL)
                object->ops->deinit(object);
        free(object->path);
        *object = (struct object){.fd = -1, .direct = -1};
}

int object_read_ranges(const struct object_range *ranges, size_t n, struct error *error)
{
        return n > 0 ? ranges[0].object->ops->read_ranges(ranges, n, error) : 0;
}

int object_read_range(const struct object *object, uint64_t offset, uint64_t len, unsigned char *to,
                      struct error *error)
{
        const struct object_range range = {object, offset, len, to};
        return object->ops->read_ranges(&range, 1, error);
}

int object_check_versions(const struct object *const *objects, size_t n, struct error *error)
{
        return n > 0 ? objects[0]->ops->check_versions(objects, n, error) : 0;
}
