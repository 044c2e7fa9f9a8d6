/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/load/content/verify.h"

#include "daemon/resident/digest_check.h"

#include <string.h>

int verify_generation(const struct generation *generation, struct reader *reader, const bool *stop, struct error *error)
{
        const struct manifest_view manifest = table_manifest(&generation->manifest);
        unsigned char digest[DIGEST_SIZE];
        int r = digest_check(generation, reader, NULL, stop, error);
        if (r == STREAMER_ECANCELED)
                return error_set(error, STREAMER_ECANCELED, "verify stopped: the daemon ends");
        if (r < 0)
                return r;
        if (!hash_model(&manifest, digest))
                return error_set(error, STREAMER_ENOMEM, "no memory to verify");
        if (memcmp(digest, generation->digest, DIGEST_SIZE) != 0)
                return error_set(error, STREAMER_EFAILED, "the model's digest differs");
        return 0;
}
