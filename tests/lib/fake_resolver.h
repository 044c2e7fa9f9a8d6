/* SPDX-License-Identifier: Apache-2.0
 *
 * Replaces the resolution of host names in this program, as libcurl calls it, and observes libcurl's options.
 */
#pragma once

#include <netdb.h>
#include <stdbool.h>

/* Answers getaddrinfo(); NULL: the C library does. A result that it returns is freed with free(). */
extern int (*fake_getaddrinfo)(const char *name, const char *service, struct addrinfo **found);

/* The options of curl_easy_setopt that named certificates, so far. */
extern unsigned fake_resolver_certificates;
