/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine for objects over HTTP(S): network threads, each with a loop and kept-alive connections of
 * its own, on which blocks are fetched as ranges straight to where they belong.
 */
#ifndef DAEMON_IO_REMOTE_HTTP_ENGINE_H
#define DAEMON_IO_REMOTE_HTTP_ENGINE_H

#include "daemon/io/reader/engine.h"

/* Its threads are started with the first job. */
extern const struct engine_ops http_engine_ops;

#endif
