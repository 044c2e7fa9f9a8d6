/* SPDX-License-Identifier: Apache-2.0
 *
 * Command lines that streamerctl or the daemon refuses: the exit code and the text of each.
 */
#include "tests/lib/fixture.h"
#include "tests/lib/streamerctl.h"
#include "tests/lib/suite.h"

#define NOT_UTF8 "a\xff"
#define NOT_UTF8_SHOWN "a\\xff (see"
#define EIGHT "0,1,2,3,4,5,6,7,"
#define INTERVAL "is not a duration: 100ms to 1h, in seconds or with ms, s, m or h"

static const struct {
        const char *args[6];
        int code;
        const char *text;
} refused[] = {
        {{0}, 2, "a verb is missing (see 'streamerctl help')"},
        {{"--json"}, 2, "\"text\":\"a verb is missing\""},
        {{"load"}, 2, "load: an argument is missing: SOURCE... (see 'streamerctl help load')"},
        {{"load", ""}, 2, "load: an argument is empty: SOURCE... (see 'streamerctl help load')"},
        {{"show", ""}, 2, "show: an argument is empty: MODEL..."},
        {{"status", "x"}, 2, "status: one argument too many: 'x' (see 'streamerctl help status')"},
        {{"load", "x", "--name"}, 2, "--name needs a value: NAME (see 'streamerctl help load')"},
        {{"cat", "m", "t", "-o", "json"}, 2, "\"text\":\"cat: writes bytes, not JSON\""},
        {{"load", "x", "--keep-alive", "1y"},
         2,
         "'1y' is not a duration: 1ms to 8784h, in seconds or with ms, s, m or h"},
        {{"set-priority", "witness", "0"}, 2, "'0' is not a priority: 1 to 10000"},
        {{"unload", "witness", "--device", "0,1"}, 2, "unload: one device at most"},
        {{"load", "x", "--device", EIGHT EIGHT EIGHT EIGHT EIGHT EIGHT EIGHT EIGHT "8"},
         2,
         "too many devices: at most"},
        {{"load", "x", "--device", "0,,1"}, 2, "--device: a name is missing in '0,,1'"},
        {{"load", "x", "--dry-run", "--name", NOT_UTF8}, 2, "load: not valid UTF-8: " NOT_UTF8_SHOWN},
        {{"pin", NOT_UTF8}, 2, "pin: not valid UTF-8: " NOT_UTF8_SHOWN},
        {{"diff", NOT_UTF8, "x"}, 2, "diff: not valid UTF-8: " NOT_UTF8_SHOWN},
        {{"fetch", "x", NOT_UTF8}, 2, "fetch: not valid UTF-8: " NOT_UTF8_SHOWN},
        {{"fetch", NOT_UTF8, "x"}, 2, "fetch: field 'source' is not valid UTF-8: "},
        {{"fetch", NOT_UTF8}, 2, "fetch: not valid UTF-8: " NOT_UTF8_SHOWN},
        {{"show", NOT_UTF8}, 2, "show: not valid UTF-8: " NOT_UTF8_SHOWN},
        {{"load", NOT_UTF8}, 2, "/a\\xff"},
        {{"load", "x", "--dry-run", "--device", NOT_UTF8}, 2, "load: not valid UTF-8: " NOT_UTF8_SHOWN},
        {{"stop"}, 2, "did you mean 'shutdown' or 'unload'?"},
        {{"lod"}, 2, "did you mean 'load'?"},
        {{"unlaod"}, 2, "did you mean 'unload'?"},
        {{"lits"}, 2, "did you mean 'list'?"},
        {{"remove"}, 2, "did you mean 'unload'?"},
        {{"zzz"}, 2, "unknown verb 'zzz' (see 'streamerctl help')\n"},
        {{"load", "a", "b", "--name", "c"}, 2, "streamerctl: "},
        {{"cancel", "a", "b"}, 2, "one argument too many: 'b'"},
        {{"list", "--no-such-flag"}, 2, "--no-such-flag"},
        {{"list", "-o", "xml"}, 2, "xml"},
        {{"list", "--output", "xml"}, 2, "unknown format 'xml': it is table, wide or json"},
        {{"list", "-w"}, 2, "unknown flag '-w': did you mean '--watch'?"},
        {{"unload", "-a"}, 2, "unknown flag '-a': did you mean '--all'?"},
        {{"-v"}, 2, "unknown flag '-v': did you mean '--version'?"},
        {{"list", "-x"}, 2, "unknown flag '-x' (see"},
        {{"keep-alive", "witness", "0"}, 2, "'0' is not a duration: 1ms to 8784h"},
        {{"wait", "witness", "--timeout", "600h"}, 2, "'600h' is not a duration: 0 to 500h"},
        {{"wait", "witness", "--timeout", "1e3"}, 2, "'1e3' is not a duration"},
        {{"wait", "witness", "--timeout", "-1"}, 2, "'-1' is not a duration"},
        {{"wait", "witness", "--timeout", "."}, 2, "'.' is not a duration"},
        {{"load", "/x", "--verify", "md5"}, 2, "md5"},
        {{"wait", "witness", "--timeout", "soon"}, 2, "soon"},
        {{"show", "nobody"}, 3, "nobody: no such model\n"},
        {{"show", "witnes"}, 3, "witnes: no such model; the nearest is 'witness'"},
        {{"show", "witnes.safetensors"}, 3, "the nearest is 'witness'"},
        {{"unload", "witnes"}, 3, "the nearest is 'witness'"},
        {{"pin", "witnes"}, 3, "the nearest is 'witness'"},
        {{"wait", "witnes"}, 3, "the nearest is 'witness'"},
        {{"cat", "witnes", "x"}, 3, "the nearest is 'witness'"},
        {{"keep-alive", "witness", "soon"}, 2, "'soon' is not a duration"},
        {{"unload"}, 2, "streamerctl: unload: "},
        {{"unload", "--all", "c"}, 2, "streamerctl: unload: "},
        {{"unload", "--dry-run"}, 2, "streamerctl: unload: "},
        {{"top"}, 2, "top: needs a terminal; --once prints one frame without"},
        {{"top", "--once", "--interval", "0"}, 2, INTERVAL},
        {{"top", "--once", "--interval", "-1"}, 2, INTERVAL},
        {{"top", "--once", "--interval", "nan"}, 2, INTERVAL},
        {{"top", "--once", "--interval", "x"}, 2, INTERVAL},
        {{"top", "--once", "--interval", "1x"}, 2, INTERVAL},
        {{"top", "--once", "--interval", "3601"}, 2, INTERVAL},
        {{"top", "--once", "--interval", ""}, 2, INTERVAL},
        {{"run", "nobody", "--", "true"}, 3, "nobody: no such model"},
        {{"run", "witness"}, 2, "streamerctl: run: "},
        {{"run", "witness", "--", "no-such-command"}, 127, "no-such-command"},
        {{"run", "witness", "--", "/etc/passwd"}, 126, "/etc/passwd"},
        {{"wait", "nobody"}, 3, "nobody: no such model"},
        {{"verify", "nobody"}, 3, "nobody: no such model"},
        {{"cancel", "nobody"}, 3, "nobody"},
        {{"unload", "nobody"}, 3, "nobody: no such model"},
        {{"cat", "nobody", "t"}, 3, "nobody: no such model"},
        {{"ps", "4711"}, 3, "4711: no such lease"},
        {{"run", "witness", "--", "/nowhere/program"},
         127,
         "/nowhere/program: cannot be run: No such file or directory"},
};

FIXTURE(.all = {fixture_begin_default, fixture_end});

TEST(a_command_line_is_refused_with_its_reason, EACH(refused))
{
        struct ctl r;
        ctl_v(&r, test_daemon.socket, refused[_i].args);
        ck_assert_msg(r.code == refused[_i].code, "exit %d: %s", r.code, r.err);
        ck_assert_msg(strstr(r.err, refused[_i].text) != NULL, "%s", r.err);
        ck_assert_str_eq(r.out, "");
}

static const char *const durations[] = {"30", "30s", "0.5m", "30000ms", "30.0"};

TEST(a_duration_is_a_number_of_seconds_or_has_a_unit, EACH(durations))
{
        ctl_says(test_daemon.socket, 0, "keep-alive 30.00 s", "keep-alive", "witness", durations[_i], NULL);
        ctl_says(test_daemon.socket, 0, "ready", "wait", "witness", "--timeout", durations[_i], NULL);
        ctl_says(test_daemon.socket, 0, "DEVICE", "top", "--once", "--interval", durations[_i], NULL);
}

static const char *const json_flags[][3] = {
        {"-o", "json"}, {"-ojson"}, {"--output", "json"}, {"--output=json"}, {"--json"}};

TEST(the_format_has_a_long_and_a_short_flag, EACH(json_flags))
{
        ctl_says(test_daemon.socket, 0, "{\"schema\":1", "list", json_flags[_i][0], json_flags[_i][1], NULL);
        ctl_says(test_daemon.socket, 3, "{\"schema\":1,\"error\"", "show", "nobody", json_flags[_i][0],
                 json_flags[_i][1], NULL);
}

TEST(the_version_has_a_short_flag)
{
        ctl_says(NULL, 0, "streamerctl 0.", "-V", NULL);
}

TEST(without_arguments_the_usage_is_printed)
{
        const char *said = ctl_says(NULL, 2, "Usage: streamerctl [FLAGS] VERB [ARGUMENTS]\n\nVerbs:\n", NULL);
        ck_assert_msg(strncmp(said, "Usage:", 6) == 0, "%s", said);
}
