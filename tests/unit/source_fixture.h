/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixture of the source tests: a directory with root/ and outside/, a set of roots, and one open source.
 */
#pragma once

#include "tests/lib/suite.h"

#include "daemon/source/source.h"

static struct source_roots *roots;
static struct source_set set;
static struct error error;
static char *base; /* holds root/ and outside/ */

static char *at(const char *name)
{
        return format_text("%s/%s", base, name);
}

static void make_folder(const char *name)
{
        must(mkdir(at(name), 0755));
}

/* Makes its folders, too. */
static void make_file(const char *name, const char *text)
{
        file_put(base, name, text);
}

static void make_link(const char *target, const char *name)
{
        must(symlink(target, at(name)));
}

static void open_roots(const char *path)
{
        roots = source_roots_free(roots);
        ck_assert_int_eq(source_roots_new(&roots, &path, 1, &error), 0);
}

static void make_stage(void)
{
        base = suite_path("stage-%d", (int)getpid());
        must(mkdir(base, 0755));
        make_folder("root");
        make_file("outside/secret.safetensors", "secret");
        open_roots(at("root"));
}

static inline int open_source(const char *name)
{
        return source_open(&(struct sources){.roots = roots}, at(name), false, &set, &error);
}

static inline void assert_opens(const char *name, size_t n)
{
        ck_assert_msg(open_source(name) == 0, "%s", error.text);
        ck_assert_uint_eq(set.n_objects, n);
}

static inline void assert_refuses(const char *name, int code, const char *what)
{
        FAILS_WITH(error, open_source(name), code, what);
        ck_assert_uint_eq(set.n_objects, 0);
}

static inline void assert_object(size_t i, const char *name)
{
        ck_assert_str_eq(set.objects[i].path, at(name));
}
