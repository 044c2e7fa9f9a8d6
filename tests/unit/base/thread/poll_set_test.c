/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/core.h"

#include <sys/eventfd.h>

#define MANY 1000

static struct polled polled[MANY];
static unsigned calls[MANY], n_calls;

static void count(struct polled *p, uint32_t events)
{
        ck_assert_uint_ne(events & EPOLLIN, 0);
        calls[p - polled]++;
        n_calls++;
        eventfd_t value;
        must(eventfd_read(p->fd, &value));
}

static void begin(void)
{
        for (unsigned i = 0; i < MANY; i++)
                polled[i] = (struct polled){.fd = must(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), .ready = count};
}

CORE_FIXTURE(begin, NULL);

TEST(what_is_ready_is_called_in_one_iteration_however_many_they_are)
{
        for (unsigned i = 0; i < MANY; i++) {
                must(poll_set_watch(core_polls, &polled[i], EPOLLIN));
                must(eventfd_write(polled[i].fd, 1));
        }
        uv_run(&core_loop, UV_RUN_ONCE);
        for (unsigned i = 0; i < MANY; i++)
                ck_assert_uint_eq(calls[i], 1);
        ck_assert_uint_eq(poll_set_count(core_polls), MANY);
}

TEST(what_is_not_watched_is_not_called)
{
        must(poll_set_watch(core_polls, &polled[0], EPOLLIN));
        must(poll_set_watch(core_polls, &polled[1], EPOLLIN));
        must(eventfd_write(polled[0].fd, 1));
        must(eventfd_write(polled[1].fd, 1));
        must(poll_set_watch(core_polls, &polled[0], 0));
        core_until(calls[1] == 1);
        ck_assert_uint_eq(calls[0], 0);
        must(poll_set_watch(core_polls, &polled[0], EPOLLIN)); /* it is still readable */
        core_until(calls[0] == 1);
}

/* Takes the other one out, and closes it, whichever is called first. */
static void take_out_the_other(struct polled *p, uint32_t events)
{
        struct polled *other = p == &polled[0] ? &polled[1] : &polled[0];
        n_calls++;
        must(poll_set_watch(core_polls, p, 0));
        must(poll_set_watch(core_polls, other, 0));
        close(other->fd);
        memset(other, 0xff, sizeof(*other));
}

TEST(one_that_is_taken_out_by_another_is_not_called)
{
        for (unsigned i = 0; i < 2; i++) {
                polled[i].ready = take_out_the_other;
                must(poll_set_watch(core_polls, &polled[i], EPOLLIN));
                must(eventfd_write(polled[i].fd, 1));
        }
        core_until(n_calls == 1);
        core_settle();
        ck_assert_uint_eq(n_calls, 1);
}

static void watch_again(struct polled *p, uint32_t events)
{
        count(p, events);
        must(poll_set_watch(core_polls, p, 0));
        must(poll_set_watch(core_polls, p, EPOLLIN));
}

TEST(one_that_is_taken_out_and_watched_again_is_called_again)
{
        polled[0].ready = watch_again;
        must(poll_set_watch(core_polls, &polled[0], EPOLLIN));
        for (unsigned i = 1; i <= 3; i++) {
                must(eventfd_write(polled[0].fd, 1));
                core_until(calls[0] == i);
        }
}
