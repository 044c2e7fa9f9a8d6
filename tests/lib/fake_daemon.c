/* SPDX-License-Identifier: Apache-2.0
 *
 * The socket listens before fake_start() returns, so that a test can connect at once.
 */
#include "tests/lib/fake_daemon.h"

#include "proto/codes.h"
#include "daemon/base/util.h"
#include "tests/lib/fake_model.h"
#include "tests/lib/suite.h"

#include <sys/socket.h>

/* ---- values as text ---- */

static bool take(const char **at, char c)
{
        while (**at == ' ')
                ++*at;
        if (**at != c)
                return false;
        ++*at;
        return true;
}

static void put_fields(struct writer *w, const char **at, char end);

static size_t read_hex(const char **at, unsigned char data[256])
{
        size_t n = 0;
        for (unsigned byte; n < 256 && sscanf(*at, "%2x", &byte) == 1; *at += 2)
                data[n++] = (unsigned char)byte;
        return n;
}

static void put_hex(struct writer *w, const char **at)
{
        unsigned char data[256];
        writer_bin(w, data, read_hex(at, data));
}

static void put_list(struct writer *w, const char **at);

static void put_value(struct writer *w, const char **at)
{
        char *end;
        if (take(at, '['))
                return put_list(w, at);
        if (take(at, '{'))
                return put_fields(w, at, '}');
        if (take(at, '#'))
                return put_hex(w, at);
        if (**at == '\'') {
                size_t n = strcspn(++*at, "'");
                writer_strn(w, *at, n);
                *at += n + 1;
                return;
        }
        size_t n = strcspn(*at, " \n]}");
        const char *word = *at;
        *at += n;
        long long negative = strtoll(word, &end, 10);
        if (n > 0 && end == *at && word[0] == '-')
                return writer_i64(w, negative);
        uint64_t number = strtoull(word, &end, 10);
        if (n > 0 && end == *at)
                writer_u64(w, number);
        else if (n == 4 && memcmp(word, "null", n) == 0)
                writer_str(w, NULL);
        else if ((n == 4 && memcmp(word, "true", n) == 0) || (n == 5 && memcmp(word, "false", n) == 0))
                writer_bool(w, n == 4);
        else
                writer_strn(w, word, n);
}

static void put_list(struct writer *w, const char **at)
{
        struct writer items;
        size_t n = 0;
        writer_init(&items);
        for (; !take(at, ']'); n++)
                put_value(&items, at);
        writer_array(w, n);
        writer_append(w, &items);
        writer_deinit(&items);
}

/* NAME=VALUE ... up to `end`, without the map's head. How many. */
static size_t put_pairs(struct writer *w, const char **at, char end)
{
        size_t n = 0;
        for (; !take(at, end); n++) {
                size_t length = strcspn(*at, "= \n");
                if ((*at)[length] != '=')
                        die("a field is NAME=VALUE: '%.20s'", *at);
                writer_strn(w, *at, length);
                *at += length + 1;
                put_value(w, at);
        }
        return n;
}

static void put_fields(struct writer *w, const char **at, char end)
{
        struct writer pairs;
        writer_init(&pairs);
        size_t n = put_pairs(&pairs, at, end);
        writer_map(w, n);
        writer_append(w, &pairs);
        writer_deinit(&pairs);
}

/* ---- messages ---- */

static void add_message(struct fake_daemon *f, struct writer *w)
{
        unsigned char header[FRAME_HEADER];
        frame_put_header(header, w->buf.size);
        msgpack_sbuffer_write(&f->out, (const char *)header, sizeof(header));
        msgpack_sbuffer_write(&f->out, w->buf.data, w->buf.size);
        writer_deinit(w);
}

/* A client that has closed the connection does not read the rest. */
static void flush(struct fake_daemon *f)
{
        if (f->out.size == 0)
                return;
        ssize_t n = frame_send_fds(f->fd, f->out.data, f->out.size, f->fds, f->n_fds);
        if (n < 0 ? errno != EPIPE && errno != ECONNRESET : (size_t)n != f->out.size)
                die_errno("the fake daemon's send");
        f->out.size = f->n_fds = 0;
}

static void reply(struct fake_daemon *f, size_t before, const char **at)
{
        struct writer w, pairs;
        writer_init(&w);
        writer_init(&pairs);
        size_t n = put_pairs(&pairs, at, '\n');
        writer_map(&w, n + 2);
        writer_ku64(&w, "id", f->ids[before]);
        writer_key(&w, "ok");
        writer_bool(&w, true);
        writer_append(&w, &pairs);
        writer_deinit(&pairs);
        add_message(f, &w);
}

static void reply_model(struct fake_daemon *f, size_t before)
{
        cleanup_free char *text = fake_model_fields(f->model, f->fds, &f->n_fds);
        const char *at = text;
        reply(f, before, &at);
}

static void put_raw(struct fake_daemon *f, const char *hex)
{
        unsigned char data[256];
        size_t n = read_hex(&hex, data);
        msgpack_sbuffer_write(&f->out, (const char *)data, n);
}

static void put_descriptors(struct fake_daemon *f, const char *numbers)
{
        for (char *end; *numbers != '\0'; numbers = end)
                f->fds[f->n_fds++] = f->model->fds[strtoul(numbers, &end, 10)];
}

static void put_event(struct fake_daemon *f, const char *line)
{
        struct writer w;
        cleanup_free char *fields = format_text("event=%s\n", line);
        const char *at = fields;
        writer_init(&w);
        put_fields(&w, &at, '\n');
        add_message(f, &w);
}

static void put_failure(struct fake_daemon *f, const char *line)
{
        struct writer w;
        size_t n = strcspn(line, " ");
        writer_init(&w);
        writer_pairs(&w, ERROR_PAIRS(f->ids[0], code_from_wire(line, n), line + n + 1, false));
        add_message(f, &w);
}

/* ---- requests ---- */

/* False at the end of the stream. */
static bool more(struct fake_daemon *f)
{
        size_t room;
        void *space = frame_reader_space(&f->in, &room);
        ssize_t n = recv(f->fd, space, room, 0);
        if (n <= 0)
                return false;
        frame_reader_added(&f->in, (size_t)n);
        return true;
}

static bool is_absent(const msgpack_object *want)
{
        return (want->type == MSGPACK_OBJECT_POSITIVE_INTEGER && want->via.u64 == 0) ||
               (want->type == MSGPACK_OBJECT_BOOLEAN && !want->via.boolean);
}

static void check_fields(struct fake_daemon *f, const char *line)
{
        struct writer w;
        struct message want;
        cleanup_free char *fields = format_text("verb=%s\n", line);
        const char *at = fields;
        writer_init(&w);
        put_fields(&w, &at, '\n');
        if (message_decode(&want, w.buf.data, w.buf.size) != 0)
                die("malformed: '%s'", line);
        const msgpack_object_map *map = &want.unpacked.data.via.map;
        for (size_t i = 0; i < map->size; i++) {
                char key[64];
                snprintf(key, sizeof(key), "%.*s", (int)map->ptr[i].key.via.str.size, map->ptr[i].key.via.str.ptr);
                const msgpack_object *had = object_get(&f->request.unpacked.data, key);
                if (had == NULL ? !is_absent(&map->ptr[i].val) : !msgpack_object_equal(*had, map->ptr[i].val)) {
                        fprintf(stderr, "the request is ");
                        msgpack_object_print(stderr, f->request.unpacked.data);
                        die(", and was to be '%s'", line);
                }
        }
        message_deinit(&want);
        writer_deinit(&w);
}

bool fake_next(struct fake_daemon *f)
{
        const void *data;
        size_t len;
        while (frame_reader_next(&f->in, &data, &len) == 0)
                if (!more(f))
                        return false;
        message_deinit(&f->request);
        if (message_decode(&f->request, data, len) != 0)
                die("the client's request is malformed");
        memmove(f->ids + 1, f->ids, sizeof(f->ids) - sizeof(f->ids[0]));
        f->ids[0] = 0;
        object_u64(&f->request.unpacked.data, "id", &f->ids[0]);
        return true;
}

static void expect(struct fake_daemon *f, const char *line)
{
        if (!fake_next(f))
                die("the client disconnected before '%s'", line);
        check_fields(f, line);
}

/* ---- connections ---- */

static void accept_connection(struct fake_daemon *f)
{
        f->fd = must(accept4(f->listener, NULL, NULL, SOCK_CLOEXEC));
}

static void close_connection(struct fake_daemon *f)
{
        if (f->fd >= 0)
                close(f->fd);
        f->fd = -1;
        frame_reader_deinit(&f->in);
}

static void greet(struct fake_daemon *f, const char *feature)
{
        struct writer w;
        struct items features;
        bool additional = feature[0] == '+';
        accept_connection(f);
        expect(f, "hello");
        writer_init(&w);
        items_init(&features);
        features.n = writer_features(&features.w, feature[0] == '-' ? feature + 1 : NULL) + additional;
        if (additional)
                writer_str(&features.w, feature + 1);
        writer_pairs(&w, REPLY_PAIRS(f->ids[0], ku64("protocol", PROTOCOL_MAX), kstr("version", "0.0.fake"),
                                     kitems("features", &features)));
        items_deinit(&features);
        add_message(f, &w);
}

/* ---- the conversation ---- */

static void say_line(struct fake_daemon *f, const char *line)
{
        const char *fields = line + 1;
        size_t before = line[0] == '<' && isdigit((unsigned char)*fields) ? (size_t)(*fields++ - '0') : 0;
        if (line[0] == '<' && strcmp(fields, " model\n") == 0)
                return reply_model(f, before);
        if (line[0] == '<')
                return reply(f, before, &fields);
        cleanup_free char *text = format_text("%.*s", (int)strlen(line) - 1, line);
        if (text[0] == '*')
                put_event(f, text + 2);
        else if (text[0] == '!')
                put_failure(f, text + 2);
        else if (strncmp(text, "with ", 5) == 0)
                put_descriptors(f, text + 5);
        else if (strncmp(text, "raw #", 5) == 0)
                put_raw(f, text + 5);
        else if (strncmp(text, "hello", 5) == 0)
                greet(f, text[5] != '\0' ? text + 6 : text + 5);
        else if (sscanf(text, "arrive %zu", &before) == 1)
                fake_model_arrive(f->model, (uint32_t)before);
        else {
                flush(f);
                if (text[0] == '>')
                        expect(f, text + 2);
                else if (strcmp(text, "accept") == 0)
                        accept_connection(f);
                else if (strcmp(text, "pause") == 0)
                        while (sem_wait(&f->turn) < 0)
                                ;
                else if (strcmp(text, "end") == 0)
                        ck_assert(!more(f));
                else if (strcmp(text, "close") == 0 || strcmp(text, "vanish") == 0) {
                        if (text[0] == 'v')
                                close(take_fd(&f->listener));
                        close_connection(f);
                } else
                        die("no such step: '%s'", text);
        }
}

void fake_say(struct fake_daemon *f, const char *text)
{
        while (*text != '\0') {
                size_t n = strcspn(text, "\n") + 1;
                cleanup_free char *line = format_text("%.*s", (int)n, text);
                say_line(f, line);
                text += n;
        }
        flush(f);
}

/* ---- lifecycle ---- */

static void *run(void *arg)
{
        struct fake_daemon *f = arg;
        if (f->script != NULL)
                f->script(f);
        else
                fake_say(f, f->text);
        return NULL;
}

static void start(struct fake_daemon *f, const char *text, void (*script)(struct fake_daemon *f))
{
        static int n;
        struct sockaddr_un addr = {.sun_family = AF_UNIX};
        *f = (struct fake_daemon){.fd = -1, .text = text, .script = script, .model = f->model};
        snprintf(f->socket, sizeof(f->socket), "%s/fake%d", suite_folder(), n++);
        memcpy(addr.sun_path, f->socket, sizeof(addr.sun_path));
        unlink(f->socket);
        f->listener = must(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
        must(bind(f->listener, (struct sockaddr *)&addr, sizeof(addr)));
        must(listen(f->listener, 8));
        must(sem_init(&f->turn, 0, 0));
        frame_reader_init(&f->in);
        msgpack_sbuffer_init(&f->out);
        if (pthread_create(&f->thread, NULL, run, f) != 0)
                die("no thread");
}

void fake_start(struct fake_daemon *f, const char *text)
{
        start(f, text, NULL);
}

void fake_start_script(struct fake_daemon *f, void (*script)(struct fake_daemon *f))
{
        start(f, NULL, script);
}

void fake_finish(struct fake_daemon *f)
{
        pthread_join(f->thread, NULL);
        close_connection(f);
        if (f->listener >= 0)
                close(f->listener);
}

void fake_resume(struct fake_daemon *f)
{
        sem_post(&f->turn);
}

static streamer_client *connect_to(struct fake_daemon *f)
{
        streamer_client *c;
        streamer_connect_opts opts = {.struct_size = sizeof(opts), .socket = f->socket};
        if (streamer_connect(&opts, &c) < 0)
                die("%s", streamer_last_error(c));
        return c;
}

streamer_client *fake_connect(struct fake_daemon *f, const char *text)
{
        fake_start(f, text);
        return connect_to(f);
}

streamer_client *fake_connect_script(struct fake_daemon *f, void (*script)(struct fake_daemon *f))
{
        fake_start_script(f, script);
        return connect_to(f);
}

void fake_disconnect(struct fake_daemon *f, streamer_client *c)
{
        streamer_close(c);
        fake_finish(f);
}
