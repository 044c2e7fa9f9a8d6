/* SPDX-License-Identifier: Apache-2.0
 *
 * The commit record of a stored model: its manifest, followed by what it takes to restore the model (model_record.h),
 * in one memfd that is sealed against any change. A valid record in the store means that the model was ready and that
 * its segments were stored before. The manifest comes first, so that clients can map the same descriptor.
 */
#ifndef DAEMON_RESIDENT_PERSIST_COMMIT_RECORD_H
#define DAEMON_RESIDENT_PERSIST_COMMIT_RECORD_H

#include "daemon/resident/persist/model_record.h"

/* On the loop, of a generation that is ready: the record without its manifest. STREAMER_ENOMEM. */
int commit_record_pack(msgpack_sbuffer *details, const struct generation *generation, uint64_t id);

/* On a worker: completes `details`. *fd is the sealed memfd, open for reading. */
int commit_record_write(msgpack_sbuffer *details, const struct table *manifest, int *fd, struct error *error);

/* Takes over fd. STREAMER_ECORRUPT where the seals, sizes, checksum, version or manifest are wrong. On success *out
 * is the generation's manifest. */
int commit_record_read_consume_fd(struct model_record *record, int fd, struct table *out, struct error *error);

#endif
