/* SPDX-License-Identifier: Apache-2.0
 *
 * Texts that nobody is to see: wiped when they are freed, and named in settings by where they are.
 */
#ifndef DAEMON_BASE_SECRET_H
#define DAEMON_BASE_SECRET_H

#include "daemon/base/error.h"

#include <stdbool.h>

/* NULL is fine. */
void secret_free(char *secret);

/* What a setting stands for: "file:PATH", "credential:NAME" ($CREDENTIALS_DIRECTORY, where the service
 * manager puts what a unit's LoadCredential= names), else itself. A file's line end is cut off. */
int secret_read(const char *setting, char **secret, struct error *error);
/* It tells where the secret is, and is none itself. */
bool secret_is_elsewhere(const char *setting);

#endif
