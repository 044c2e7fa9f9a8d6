/* SPDX-License-Identifier: Apache-2.0
 *
 * The client's lock: what one thread does without it, other threads of the client do not wait for, and what is being
 * freed they do not reach. A thread is stopped inside a call of the C library that this file replaces.
 */
#include "client/cuda_driver.h"
#include "tests/unit/attach_cuda_fixture.h"
#include "tests/unit/client_fixture.h"

#include <dirent.h>
#include <dlfcn.h>

/* ---- gates ---- */

enum gate { GATE_NONE, GATE_OPENDIR, GATE_MUNMAP };

static _Thread_local enum gate gate;     /* at which this thread stops, once */
static _Thread_local unsigned gate_left; /* calls, with the one in which it stops */
static sem_t stopped, released;

static void pass(enum gate which)
{
        if (gate != which || --gate_left > 0)
                return;
        gate = GATE_NONE;
        sem_post(&stopped);
        while (sem_wait(&released) < 0)
                ;
}

DIR *opendir(const char *name)
{
        DIR *(*next)(const char *);
        *(void **)&next = dlsym(RTLD_NEXT, "opendir");
        pass(GATE_OPENDIR);
        return next(name);
}

/* After the unmapping. */
int munmap(void *address, size_t size)
{
        int (*next)(void *, size_t);
        *(void **)&next = dlsym(RTLD_NEXT, "munmap");
        int result = next(address, size);
        pass(GATE_MUNMAP);
        return result;
}

/* ---- a thread that is stopped ---- */

struct stopped_call {
        pthread_t thread;
        enum gate gate;
        unsigned nth;
        int (*call)(void);
        int code;
        char text[300];
};

static struct stopped_call other;

static void *run(void *arg)
{
        gate = other.gate;
        gate_left = other.nth;
        other.code = other.call();
        snprintf(other.text, sizeof(other.text), "%s", streamer_last_error(client));
        gate = GATE_NONE;
        return NULL;
}

/* Starts the call in a thread, and returns when that is in its nth call of the C library's function. */
static void stop_in(enum gate which, unsigned nth, int (*call)(void))
{
        other = (struct stopped_call){.gate = which, .nth = nth, .call = call};
        must(sem_init(&stopped, 0, 0));
        must(sem_init(&released, 0, 0));
        must(-pthread_create(&other.thread, NULL, run, NULL));
        while (sem_wait(&stopped) < 0)
                ;
}

static void release(void)
{
        sem_post(&released);
        must(-pthread_join(other.thread, NULL));
}

static int detach(void)
{
        streamer_detach(lease);
        lease = NULL;
        return 0;
}

static int check_lease(void)
{
        return streamer_lease_check(lease);
}

CLIENT_FIXTURE();

/* ---- the memory of a lease ---- */

/* The segment, the manifest, the arrival log. */
#define LAST_OF_LEASE 3

/* The daemon does not hear of the end before all is unmapped. */
TEST(events_do_not_reach_a_lease_that_is_being_unmapped)
{
        char *event;
        m.loading = true;
        attach("hello\n" FAKE_ATTACH
               "> subscribe\n<\npause\n* lease lease=7 state=loading\n* model name=m\n> ping\n<\n" FAKE_DETACH,
               0);
        ck_assert_int_eq(streamer_subscribe(client, NULL), 0);
        stop_in(GATE_MUNMAP, LAST_OF_LEASE, detach);
        fake_resume(&fake);
        ck_assert_int_eq(streamer_event_next(client, -1, &event), 0);
        CALL_GIVES(client, "ping", NULL, "{}");
        release();
}

/* It is the daemon's memory that the kernel frees: a reconnection claims it until the detach. */
TEST(a_lease_that_is_being_unmapped_is_claimed_and_then_detached)
{
        attach("hello\n> attach model=m\n< model\nclose\nhello\n> reclaim generation=42\n< lease=9 state=ready\n> "
               "ping\n<\n"
               "> detach lease=9\n<\n",
               0);
        stop_in(GATE_MUNMAP, LAST_OF_LEASE - 1, detach);
        int code;
        while ((code = streamer_call(client, "ping", NULL, NULL)) == STREAMER_EUNREACHABLE)
                ;
        ck_assert_int_eq(code, 0);
        release();
}

TEST(a_lease_that_is_lost_while_it_is_being_unmapped_is_not_detached)
{
        attach("hello\n> attach model=m\n< model\nclose\nhello\n> reclaim\n! lost not held\n> ping\n<\n> ping\n<\n", 0);
        stop_in(GATE_MUNMAP, LAST_OF_LEASE - 1, detach);
        int code;
        while ((code = streamer_call(client, "ping", NULL, NULL)) == STREAMER_EUNREACHABLE)
                ;
        ck_assert_int_eq(code, 0);
        release();
        CALL_GIVES(client, "ping", NULL, "{}");
}

/* ---- a forked child ---- */

static atomic_bool both_wait;

static void answer_two_waits(struct fake_daemon *f)
{
        fake_say(f, "hello\n> wait model=m\n> wait model=m\n");
        both_wait = true;
        fake_say(f, "pause\n<1\n<\nend\n");
}

static void *wait_for_model(void *arg)
{
        ck_assert_int_eq(streamer_wait(client, "m", -1), 0);
        return NULL;
}

/* One thread of the parent reads the socket, and the other one sleeps until it wakes it. */
TEST(a_child_closes_a_client_that_threads_of_the_parent_wait_on)
{
        pthread_t threads[2];
        client = fake_connect_script(&fake, answer_two_waits);
        for (int i = 0; i < 2; i++)
                must(-pthread_create(&threads[i], NULL, wait_for_model, NULL));
        AWAIT(both_wait);
        for (int i = 0; i < 50; i++) {
                int status;
                pid_t pid = must(fork());
                if (pid == 0) {
                        streamer_close(client);
                        _exit(0);
                }
                must(waitpid(pid, &status, 0));
                ck_assert_int_eq(status, 0);
        }
        fake_resume(&fake);
        for (int i = 0; i < 2; i++)
                must(-pthread_join(threads[i], NULL));
}

/* ---- what was not found ---- */

#define MISSING "/nowhere/m.safetensors"

static int open_missing(void)
{
        return streamer_open(client, MISSING, NULL, &lease);
}

static int load_missing(void)
{
        streamer_op *op = NULL;
        streamer_load_opts opts = STREAMER_LOAD_OPTS_INIT;
        opts.source = MISSING;
        int code = streamer_load(client, &opts, &op);
        if (code == 0)
                code = streamer_op_wait(op, -1, NULL);
        streamer_op_free(op);
        return code;
}

static const struct {
        const char *text;
        int (*call)(void);
} missing[] = {
        {"hello\n> load\n! not-found no such file\n", open_missing},
        {"hello\n> load\n* op op=5 request=2 name=m\npause\n* op op=5 request=2 state=failed code=not-found text='no "
         "such file'\n"
         "! not-found no such file\n",
         open_missing},
        {"hello\n> load\n< op=5 name=m\n* op op=5 state=failed code=not-found text='no such file'\n", load_missing},
};

/* While one thread looks for the nearest name in a folder, others call on the client. */
TEST(a_folder_is_read_without_the_lock, EACH(missing))
{
        client = fake_connect(&fake, missing[_i].text);
        sem_post(&fake.turn);
        stop_in(GATE_OPENDIR, 1, missing[_i].call);
        (void)streamer_process(client);
        ck_assert_int_ge(streamer_fd(client), 0);
        release();
        ck_assert_int_eq(other.code, STREAMER_ENOENT);
        ck_assert_str_eq(other.text, "no such file");
}

/* ---- a GPU's driver ---- */

/* A copy from a GPU holds the lock of the driver for as long as it takes. */
TEST(a_reconnection_does_not_wait_for_a_gpu)
{
        export_memory(0, false);
        m.kind = "cuda-ipc";
        m.handle = exporter.handle.bytes;
        m.uuid = exporter.uuid;
        attach("hello\n" FAKE_ATTACH "close\nhello\n> reclaim\n! lost not held\n> ping\n<\nend\n", 0);
        pthread_t thread;
        cuda_lock();
        other = (struct stopped_call){.call = check_lease};
        must(-pthread_create(&thread, NULL, run, NULL));
        must(-pthread_join(thread, NULL));
        cuda_unlock();
        ck_assert_int_eq(other.code, STREAMER_ELOST);
}
