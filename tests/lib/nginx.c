/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/nginx.h"

#include "tests/lib/ports.h"

#include <sys/prctl.h>

static const char *program(void)
{
        static const char *const paths[] = {"/usr/sbin/nginx", "/usr/bin/nginx", "/usr/local/sbin/nginx"};
        for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
                if (access(paths[i], X_OK) == 0)
                        return paths[i];
        return NULL;
}

const char *nginx_unavailable(void)
{
        return program() != NULL ? NULL : "nginx is not installed";
}

/* ---- certificates ---- */

static void make_certificates(struct nginx *n)
{
        const char *f = n->folder;
        char *said;
        int status = shell(&said,
                           "cd '%s' && "
                           "openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 "
                           "-subj '/CN=a private CA' && "
                           "openssl req -newkey rsa:2048 -nodes -keyout key.pem -out request.pem "
                           "-subj '/CN=localhost' && "
                           "printf 'subjectAltName=DNS:localhost,DNS:weights.example,IP:127.0.0.1' >names && "
                           "openssl x509 -req -in request.pem -CA ca.pem -CAkey ca.key -CAcreateserial "
                           "-out cert.pem -days 2 -extfile names",
                           f);
        if (status != 0)
                die("%s: openssl: status %d: %s", f, status, said);
        if (snprintf(n->ca, sizeof(n->ca), "%s/ca.pem", f) >= (int)sizeof(n->ca))
                die("%s: too long a path", f);
}

/* ---- starting ---- */

static void write_config(const struct nginx *n, const char *servers)
{
        const char *f = n->folder;
        char *text = format_text("daemon off;\nworker_processes 2;\npid %s/pid;\nerror_log %s/error.log;\n"
                                 "%sevents { worker_connections 512; }\n"
                                 "http {\nlog_format sent '$body_bytes_sent $status $request_uri $http_range';\n"
                                 "access_log %s/access.log sent;\nkeepalive_requests 100000;\nsendfile on;\n"
                                 "client_body_temp_path %s/t1;\nproxy_temp_path %s/t2;\nfastcgi_temp_path %s/t3;\n"
                                 "uwsgi_temp_path %s/t4;\nscgi_temp_path %s/t5;\n%s}\n",
                                 f, f, geteuid() == 0 ? "user root;\n" : "", f, f, f, f, f, f, servers);
        file_write(format_text("%s/nginx.conf", f), text, strlen(text));
}

static bool answers(unsigned port)
{
        int fd = connect_to_loopback(port);
        return fd >= 0 && close(fd) == 0;
}

static void wait_until_ready(const struct nginx *n, unsigned port)
{
        bool ended = false;
        if (!WITHIN(10000, answers(port) || (ended = waitpid(n->pid, NULL, WNOHANG) == n->pid)) || ended)
                die("nginx did not start: see %s/error.log", n->folder);
}

void nginx_start_with(struct nginx *n, const char *folder, const char *servers, unsigned port)
{
        if (folder[0] != '/' || folder == n->folder)
                die("%s: not a folder of the caller's", folder);
        snprintf(n->folder, sizeof(n->folder), "%s", folder);
        mkdir(folder, 0755);
        write_config(n, servers);
        const char *conf = format_text("%s/nginx.conf", folder), *log = format_text("%s/error.log", folder);
        pid_t parent = getpid();
        n->pid = must(fork());
        if (n->pid == 0) {
                /* The master process ends its workers on SIGTERM, but not on SIGKILL. */
                prctl(PR_SET_PDEATHSIG, SIGTERM);
                if (getppid() != parent || !freopen("/dev/null", "r", stdin) || !freopen(log, "a", stderr))
                        _exit(127);
                execl(program(), "nginx", "-p", folder, "-c", conf, "-e", log, (char *)NULL);
                _exit(127);
        }
        wait_until_ready(n, port);
}

void nginx_start(struct nginx *n, const char *folder, const char *root)
{
        *n = (struct nginx){.http = free_port(), .https = free_port(), .rangeless = free_port()};
        snprintf(n->folder, sizeof(n->folder), "%s", folder);
        mkdir(folder, 0755);
        make_certificates(n);
        const char *servers = format_text("server { listen 127.0.0.1:%u; root %s; }\n"
                                          "server { listen 127.0.0.1:%u; root %s; max_ranges 0; }\n"
                                          "server { listen 127.0.0.1:%u ssl; root %s; ssl_certificate %s/cert.pem; "
                                          "ssl_certificate_key %s/key.pem; }\n",
                                          n->http, root, n->rangeless, root, n->https, root, folder, folder);
        nginx_start_with(n, folder, servers, n->http);
}

char *nginx_tls_server(const struct nginx *n, unsigned port, unsigned upstream, const char *more)
{
        return format_text("server { listen 127.0.0.1:%u ssl; ssl_certificate %s/cert.pem; "
                           "ssl_certificate_key %s/key.pem; %s location / { proxy_pass http://127.0.0.1:%u; "
                           "proxy_buffering off; proxy_http_version 1.1; } }\n",
                           port, n->folder, n->folder, more, upstream);
}

void nginx_stop(struct nginx *n)
{
        if (n->pid <= 0)
                return;
        kill(n->pid, SIGTERM);
        must(waitpid(n->pid, NULL, 0));
        n->pid = 0;
}

uint64_t nginx_sent(const struct nginx *n)
{
        FILE *f = fopen(format_text("%s/access.log", n->folder), "re");
        unsigned long long bytes, sum = 0;
        char line[1024];
        while (f != NULL && fgets(line, sizeof(line), f) != NULL)
                if (sscanf(line, "%llu", &bytes) == 1)
                        sum += bytes;
        if (f != NULL)
                fclose(f);
        return sum;
}
