/* SPDX-License-Identifier: Apache-2.0
 *
 * Several nodes, each a daemon in a network namespace of its own, load one model through one slice cache: the origin
 * sends each byte once, every node has the right bytes, and the death of one of them hurts no other.
 */
#include "tests/lib/fixture.h"
#include "tests/lib/nginx.h"
#include "tests/lib/ports.h"
#include "tests/lib/suite.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>

#define NODES 3
#define CACHE "10.77.0.1" /* reached by all nodes, in namespaces that this test makes */
#define MODEL_BYTES (48 << 20)

static struct nginx origin, cache;
static unsigned cache_port;
static int middle, namespaces[NODES]; /* where the servers are, and the nodes */
static pid_t anchor;                  /* a process in the middle */
static struct daemon nodes[NODES];
static streamer_client *clients[NODES];
static struct model *model;
static char *file;

static void sh(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void sh(const char *format, ...)
{
        char text[1024], *said;
        FORMAT_ARGS(text, format);
        int r = shell(&said, "{ %s; } 2>&1", text);
        ck_assert_msg(r == 0, "%s: %s", text, said);
        free(said);
}

static const char *unavailable(void)
{
        char *said;
        const char *reason = nginx_unavailable();
        if (reason != NULL)
                return reason;
        if (!command_exists("ip") || !command_exists("unshare"))
                return "ip is not installed";
        return shell(&said, "unshare -n sh -c 'ip link add v0 type veth peer name v1 && ip link set lo up'") == 0
                       ? NULL
                       : "network namespaces cannot be made here";
}

static int this_namespace(void)
{
        return must(open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC));
}

static void enter(int namespace)
{
        must(setns(namespace, CLONE_NEWNET));
}

/* ---- the network: each node is a link away from the middle, which has the cache's address ---- */

static void make_middle(void)
{
        must(unshare(CLONE_NEWNET));
        middle = this_namespace();
        sh("ip link set lo up && ip addr add " CACHE "/32 dev lo");
        anchor = must(fork());
        if (anchor == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                for (;;)
                        pause();
        }
}

static void make_node(int i)
{
        must(unshare(CLONE_NEWNET));
        namespaces[i] = this_namespace();
        sh("ip link add eth0 type veth peer name node%d netns %d", i, (int)anchor);
        enter(middle);
        sh("ip addr add 10.77.%d.1/24 dev node%d && ip link set node%d up", i + 1, i, i);
        enter(namespaces[i]);
        sh("ip link set lo up && ip addr add 10.77.%d.2/24 dev eth0 && ip link set eth0 up && "
           "ip route add default via 10.77.%d.1",
           i + 1, i + 1);
        char *config = suite_path("node-%d-%d.yaml", (int)getpid(), i);
        char *text = format_text("http: {allow_plain: [" CACHE "], tries: 2, backoff: 10ms}\n");
        file_write(config, text, strlen(text));
        DAEMON_START(&nodes[i], suite_path("n%d-%d", i, (int)getpid()), "--config", config, "--device", "host=128MiB",
                     "--root", suite_folder(), "--block-size", "1MiB");
        clients[i] = client_open(&nodes[i]);
        enter(middle);
}

/* ---- the servers ---- */

/* The documented configuration in front of an origin that is slow enough to kill a node meanwhile. */
static void start_servers(void)
{
        unsigned port = free_port();
        char *www = suite_path("www-%d", (int)getpid());
        must(mkdir(www, 0755));
        model = model_mixed(9, MODEL_BYTES);
        file = format_text("%s/m.safetensors", www);
        model_write(model, file);
        nginx_start_with(&origin, suite_path("origin-%d", (int)getpid()),
                         format_text("server { listen 127.0.0.1:%u; root %s; limit_rate 16m; }\n", port, www), port);
        cache_port = free_port();
        char *text = strstr(file_read("config/nginx-slice-cache.conf", NULL), "\nmap ");
        ck_assert_ptr_nonnull(text);
        text = replace_text(text, "ORIGIN", format_text("http://127.0.0.1:%u", port));
        text = replace_text(text, "CACHE", suite_path("cached-%d", (int)getpid()));
        text = replace_text(text, "LISTEN", format_text("%u", cache_port));
        nginx_start_with(&cache, suite_path("cache-%d", (int)getpid()), text, cache_port);
}

static void begin(void)
{
        make_middle();
        start_servers();
        for (int i = 0; i < NODES; i++)
                make_node(i);
}

static void end(void)
{
        for (int i = 0; i < NODES; i++)
                if (nodes[i].pid != 0) {
                        streamer_close(clients[i]);
                        ck_assert_int_eq(daemon_stop(&nodes[i]), 0);
                }
        nginx_stop(&cache);
        nginx_stop(&origin);
        kill(anchor, SIGKILL);
        waitpid(anchor, NULL, 0);
}

FIXTURE(.each = {begin, end}, .timeout = 120, .unavailable = unavailable);

static streamer_op *begin_load(int i)
{
        return client_load_begin(clients[i], format_text("http://" CACHE ":%u/m.safetensors", cache_port), "m");
}

static void await_model(int i, streamer_op *op)
{
        client_ok(clients[i], streamer_op_wait(op, 60000, NULL), "load");
        streamer_op_free(op);
        client_equals(clients[i], "m", model);
}

/* nginx logs a response after the client has received all of it. */
static void origin_was_read_once(void)
{
        uint64_t whole = file_size(file);
        AWAIT(nginx_sent(&origin) >= whole);
        ck_assert_uint_lt(nginx_sent(&origin), whole + whole / 20);
}

TEST(the_origin_is_read_once_for_all_nodes)
{
        streamer_op *ops[NODES];
        for (int i = 0; i < NODES; i++)
                ops[i] = begin_load(i);
        for (int i = 0; i < NODES; i++)
                await_model(i, ops[i]);
        origin_was_read_once();
}

static bool has_begun(int i)
{
        return client_metric(clients[i], "streamerd_read_bytes_total{source=\"http\"}") > 0 ||
               client_metric(clients[i], "streamerd_blocks_in_flight") > 0;
}

TEST(the_death_of_a_node_hurts_no_other)
{
        streamer_op *ops[NODES];
        for (int i = 0; i < NODES; i++)
                ops[i] = begin_load(i);
        AWAIT(has_begun(0));
        daemon_kill(&nodes[0]);
        for (int i = 1; i < NODES; i++)
                await_model(i, ops[i]);
        origin_was_read_once();
}

/* Its link is down, and it says nothing more: its load fails, by itself. */
TEST(a_node_that_is_cut_off_hurts_no_other)
{
        streamer_op *ops[NODES];
        for (int i = 0; i < NODES; i++)
                ops[i] = begin_load(i);
        AWAIT(has_begun(0));
        sh("ip link set node0 down");
        for (int i = 1; i < NODES; i++)
                await_model(i, ops[i]);
        origin_was_read_once();
        ck_assert_int_eq(client_call_code(clients[0], "cancel", "{\"model\":\"m\"}"), 0);
}
