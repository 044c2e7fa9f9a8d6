/* SPDX-License-Identifier: Apache-2.0
 *
 * streamer_fd() and streamer_process(). The set holds the socket while the connection lives: one that was
 * lost stays readable for ever, and is reported by a note. A reconnection adds the new socket.
 */
#include "client/readiness.h"

#include "client/args.h"
#include "client/channel.h"
#include "client/lease.h"
#include "client/op.h"
#include "client/util.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

void readiness_init(struct readiness *r)
{
        *r = (struct readiness){.epoll_fd = -1, .event_fd = -1};
}

void readiness_close(struct readiness *r)
{
        if (r->epoll_fd >= 0)
                close(r->epoll_fd);
        if (r->event_fd >= 0)
                close(r->event_fd);
        r->epoll_fd = r->event_fd = -1;
        r->raised = false;
        r->watched = 0;
}

/* ---- what is pending ---- */

static bool pending(const struct streamer_client *c)
{
        return c->events || c->events_lost > 0 || c->readiness.notes;
}

static void update_event(struct streamer_client *c)
{
        struct readiness *r = &c->readiness;
        uint64_t count = 1;
        if (pending(c) == r->raised)
                return;
        /* Neither can block: the count is 0 or 1. */
        ssize_t n = r->raised ? read(r->event_fd, &count, sizeof(count)) : write(r->event_fd, &count, sizeof(count));
        if (n == (ssize_t)sizeof(count))
                r->raised = !r->raised;
}

static void update_socket(struct streamer_client *c)
{
        struct readiness *r = &c->readiness;
        uint32_t wanted = c->dead ? 0 : (uint32_t)EPOLLIN | (c->out.size > 0 ? (uint32_t)EPOLLOUT : 0);
        struct epoll_event event = {.events = wanted};
        int op = wanted == 0 ? EPOLL_CTL_DEL : r->watched == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
        if (wanted != r->watched && epoll_ctl(r->epoll_fd, op, c->fd, &event) == 0)
                r->watched = wanted;
}

void readiness_update(struct streamer_client *c)
{
        if (c->readiness.epoll_fd < 0)
                return;
        update_event(c);
        update_socket(c);
}

void readiness_add(struct streamer_client *c, readiness_note *note)
{
        if (!note->set)
                list_add(c->readiness.notes, note);
        note->set = true;
        readiness_update(c);
}

void readiness_drop(struct streamer_client *c, readiness_note *note)
{
        if (note->set)
                list_remove(c->readiness.notes, note);
        note->set = false;
        readiness_update(c);
}

/* ---- the calls ---- */

/* Lock held. */
static int make(struct streamer_client *c)
{
        struct readiness *r = &c->readiness;
        struct epoll_event event = {.events = EPOLLIN};
        r->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
        r->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (r->epoll_fd >= 0 && r->event_fd >= 0 && epoll_ctl(r->epoll_fd, EPOLL_CTL_ADD, r->event_fd, &event) == 0) {
                readiness_update(c);
                return 0;
        }
        int error = errno;
        readiness_close(r);
        return fail(c, STREAMER_EOS, "fd: cannot make a descriptor: %s", strerror(error));
}

int streamer_fd(streamer_client *client)
{
        int rc = args_client(client, "fd");
        if (rc != 0)
                return rc;
        lock_scope(&client->lock);
        if (client->readiness.epoll_fd < 0)
                rc = make(client);
        return rc ?: client->readiness.epoll_fd;
}

static void drop_notes(struct streamer_client *c)
{
        while (c->readiness.notes)
                readiness_drop(c, c->readiness.notes);
}

int streamer_process(streamer_client *client)
{
        int rc = args_client(client, "process");
        if (rc != 0)
                return rc;
        lock_scope(&client->lock);
        channel_poll(client);
        if (pending(client))
                rc = 1;
        else if (client->dead)
                rc = channel_error(client);
        drop_notes(client);
        return rc;
}
