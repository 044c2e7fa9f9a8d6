/* SPDX-License-Identifier: Apache-2.0
 *
 * A claim on ports is an abstract socket name, which one process of the network namespace can hold and which ends
 * with it. Ports are claimed in blocks and handed out one by one.
 */
#include "tests/lib/ports.h"

#include "daemon/base/util.h"
#include "tests/lib/base.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#define PORTS_FROM 20000u
#define BLOCKS 150u /* of PORTS_MAX: to 29,600 */

static unsigned block; /* first port of the block; 0: none */
static unsigned n_given;

/* Never closed, so that forked processes hold the claim too. */
static bool claim(unsigned first)
{
        struct sockaddr_un name = {.sun_family = AF_UNIX};
        int n = snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1, "streamerd-test/ports/%u", first);
        int fd = must(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
        socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
        if (bind(fd, (struct sockaddr *)&name, len) == 0)
                return true;
        if (errno != EADDRINUSE)
                die_errno("ports from %u", first);
        close(fd);
        return false;
}

/* Other programs may listen on a port, and servers of a test that has just ended. */
static bool is_free(unsigned port)
{
        struct sockaddr_in address = {
                .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        cleanup_close int fd = must(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        int one = 1;

        /* As servers do: a recently closed connection does not block the port. */
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
        return bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0;
}

static bool are_free(unsigned first, unsigned n)
{
        unsigned i = 0;
        while (i < n && is_free(first + i))
                i++;
        return i == n;
}

unsigned free_ports(unsigned n)
{
        for (unsigned i = 0; i < BLOCKS; i++) {
                unsigned first = PORTS_FROM + ((unsigned)getpid() + i) % BLOCKS * PORTS_MAX;
                if (claim(first) && are_free(first, n))
                        return first;
        }
        die("no %u free ports", n);
}

/* Starts elsewhere than the previous process, whose clients may still connect to its ports. */
unsigned free_port(void)
{
        if (block == 0)
                block = free_ports(1);
        for (unsigned i = 0; i < PORTS_MAX; i++) {
                unsigned port = block + ((unsigned)getpid() + n_given++) % PORTS_MAX;
                if (is_free(port))
                        return port;
        }
        die("no free port from %u on", block);
}

int listen_on_loopback(int backlog, unsigned *port)
{
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t len = sizeof(address);
        int fd = must(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        must(bind(fd, (struct sockaddr *)&address, len));
        must(listen(fd, backlog));
        must(getsockname(fd, (struct sockaddr *)&address, &len));
        *port = ntohs(address.sin_port);
        return fd;
}

int connect_to_loopback(unsigned port)
{
        const struct sockaddr_in address = {
                .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        int fd = must(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0)
                return fd;
        close(fd);
        return -1;
}
