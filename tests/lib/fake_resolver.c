/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions that libcurl calls, or that stand before libcurl's: see fake_resolver.h.
 */
#include "tests/lib/fake_resolver.h"

#include <curl/curl.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <stdlib.h>

#undef curl_easy_setopt

int (*fake_getaddrinfo)(const char *name, const char *service, struct addrinfo **found);
unsigned fake_resolver_certificates;

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **found)
{
        typedef int (*next_fn)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
        if (fake_getaddrinfo != NULL)
                return fake_getaddrinfo(name, service, found);
        return ((next_fn)dlsym(RTLD_NEXT, "getaddrinfo"))(name, service, hints, found);
}

void freeaddrinfo(struct addrinfo *info)
{
        typedef void (*next_fn)(struct addrinfo *);
        if (fake_getaddrinfo != NULL)
                free(info);
        else
                ((next_fn)dlsym(RTLD_NEXT, "freeaddrinfo"))(info);
}

CURLcode curl_easy_setopt(CURL *easy, CURLoption option, ...)
{
        typedef CURLcode (*next_fn)(CURL *, CURLoption, ...);
        va_list args;
        va_start(args, option);
        void *value = va_arg(args, void *); /* numbers are as wide */
        va_end(args);
        fake_resolver_certificates += option == CURLOPT_CAINFO || option == CURLOPT_CAPATH;
        return ((next_fn)dlsym(RTLD_NEXT, "curl_easy_setopt"))(easy, option, value);
}
