/* SPDX-License-Identifier: Apache-2.0
 *
 * Tag by tag. Decoded text never outgrows its source, so it is written where it was read; a NUL ends
 * a name or a text where the delimiter behind it stood, which has been read by then.
 *
 * Refused: text that is no UTF-8, a NUL, a document type (and with it entities of its own), tags
 * that do not match, anything but white space outside the root, more than XML_DEPTH levels.
 */
#include "daemon/source/xml.h"

#include "daemon/base/util.h"
#include "proto/codec.h"

#include <string.h>

#define SPACE " \t\r\n"

static enum xml_event bad(struct xml *xml, const char *why)
{
        xml->why = why;
        return XML_BAD;
}

void xml_init(struct xml *xml, char *text, size_t size)
{
        *xml = (struct xml){.at = text, .end = text + size};
        text[size] = '\0';
        if (strlen(text) != size || !codec_utf8(text, size))
                bad(xml, "not UTF-8, or a NUL byte");
}

bool xml_is(const struct xml *xml, const char *name)
{
        return strcmp(xml->name, name) == 0;
}

/* ---- text ---- */

/* The character of a number as UTF-8; its length, 0 where XML has no such character. */
static size_t put_character(char *to, unsigned long c)
{
        if (c == 0 || c > 0x10ffff || (c >= 0xd800 && c < 0xe000) || (c < 0x20 && c != '\t' && c != '\n' && c != '\r'))
                return 0;
        if (c < 0x80) {
                to[0] = (char)c;
                return 1;
        }
        size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
        for (size_t i = n - 1; i > 0; i--, c >>= 6)
                to[i] = (char)(0x80 | (c & 0x3f));
        to[0] = (char)((n == 2 ? 0xc0 : n == 3 ? 0xe0 : 0xf0) | c);
        return n;
}

/* What stands between '#' and ';'. */
static unsigned long character_number(const char *text, size_t len)
{
        bool hex = len > 1 && text[0] == 'x';
        const char *digits = hex ? "0123456789abcdefABCDEF" : "0123456789";
        char *end;
        if (len - hex > 7 || strspn(text + hex, digits) != len - hex)
                return 0;
        return strtoul(text + hex, &end, hex ? 16 : 10);
}

/* "&...;" at *from, to *to; both move past it. */
static bool take_entity(char **from, char **to)
{
        static const struct {
                const char *word;
                char c;
        } words[] = {{"lt;", '<'}, {"gt;", '>'}, {"amp;", '&'}, {"quot;", '"'}, {"apos;", '\''}};
        char *name = *from + 1;
        for (size_t i = 0; i < ARRAY_SIZE(words); i++)
                if (strncmp(name, words[i].word, strlen(words[i].word)) == 0) {
                        *(*to)++ = words[i].c;
                        *from = name + strlen(words[i].word);
                        return true;
                }
        size_t len = strcspn(name, ";<& ");
        if (name[0] != '#' || len < 2 || name[len] != ';')
                return false;
        size_t n = put_character(*to, character_number(name + 1, len - 1));
        *to += n;
        *from = name + len + 1;
        return n > 0;
}

/* Text up to the next '<', decoded to *to. */
static bool take_text(struct xml *xml, char **to)
{
        char *from = xml->at;
        while (*from != '\0' && *from != '<') {
                if (*from != '&')
                        *(*to)++ = *from++;
                else if (!take_entity(&from, to))
                        return false;
        }
        xml->at = from;
        return true;
}

/* ---- what stands between tags ---- */

static bool skip_past(struct xml *xml, const char *end)
{
        char *at = strstr(xml->at, end);
        if (at != NULL)
                xml->at = at + strlen(end);
        return at != NULL;
}

static bool begins(const struct xml *xml, const char *word)
{
        return strncmp(xml->at, word, strlen(word)) == 0;
}

static bool take_cdata(struct xml *xml, char **to)
{
        char *from = xml->at + strlen("<![CDATA["), *end = strstr(from, "]]>");
        if (end == NULL)
                return false;
        memmove(*to, from, (size_t)(end - from));
        *to += end - from;
        xml->at = end + strlen("]]>");
        return true;
}

/* Up to the next tag; xml->text begins where this does and *end is where it ends. Its NUL is put
 * later, since the tag's own '<' may have to be read first. */
static const char *gather(struct xml *xml, char **end)
{
        char *to = xml->text = xml->at;
        for (;;) {
                if (!take_text(xml, &to))
                        return "an entity that is not known";
                *end = to;
                if (begins(xml, "<?")) {
                        if (!skip_past(xml, "?>"))
                                return "an instruction without an end";
                } else if (begins(xml, "<!--")) {
                        if (!skip_past(xml, "-->"))
                                return "a comment without an end";
                } else if (begins(xml, "<![CDATA[")) {
                        if (!take_cdata(xml, &to))
                                return "a CDATA section without an end";
                } else {
                        return begins(xml, "<!") ? "a document type" : NULL;
                }
        }
}

/* ---- tags ---- */

static const char *local_name(const char *name)
{
        const char *colon = strchr(name, ':');
        return colon != NULL ? colon + 1 : name;
}

/* The '>' of a tag, past attributes in whose quotes '>' may stand. */
static char *tag_end(char *at)
{
        for (char quote = '\0'; *at != '\0'; at++) {
                if (quote != '\0')
                        quote = *at == quote ? '\0' : quote;
                else if (*at == '"' || *at == '\'')
                        quote = *at;
                else if (*at == '>')
                        return at;
                else if (*at == '<')
                        return NULL;
        }
        return NULL;
}

static enum xml_event close_element(struct xml *xml)
{
        xml->name = local_name(xml->open[--xml->depth]);
        return XML_CLOSE;
}

static enum xml_event open_tag(struct xml *xml)
{
        char *name = xml->at + 1, *end = tag_end(name);
        if (end == NULL)
                return bad(xml, "a tag without an end");
        if (xml->depth == XML_DEPTH)
                return bad(xml, "too many levels");
        if (xml->depth == 0 && xml->seen_root)
                return bad(xml, "a second root");
        xml->close_next = end[-1] == '/' && end > name;
        *end = '\0';
        if (xml->close_next)
                end[-1] = '\0';
        name[strcspn(name, SPACE)] = '\0';
        if (name[0] == '\0')
                return bad(xml, "a tag without a name");
        xml->at = end + 1;
        xml->seen_root = true;
        xml->open[xml->depth++] = name;
        xml->name = local_name(name);
        return XML_OPEN;
}

static enum xml_event close_tag(struct xml *xml)
{
        char *name = xml->at + 2, *end = strchr(name, '>');
        if (end == NULL || xml->depth == 0)
                return bad(xml, end == NULL ? "a tag without an end" : "a tag that nothing opened");
        *end = '\0';
        name[strcspn(name, SPACE)] = '\0';
        if (strcmp(name, xml->open[xml->depth - 1]) != 0)
                return bad(xml, "a tag that closes another element");
        xml->at = end + 1;
        return close_element(xml);
}

enum xml_event xml_next(struct xml *xml)
{
        char *end;
        if (xml->why != NULL)
                return XML_BAD;
        if (xml->close_next) {
                xml->close_next = false;
                xml->text = xml->at - 1; /* the NUL of the tag's end: nothing */
                return close_element(xml);
        }
        bool outside = xml->depth == 0;
        const char *why = gather(xml, &end);
        if (why != NULL)
                return bad(xml, why);
        if (outside && strspn(xml->text, SPACE) < (size_t)(end - xml->text))
                return bad(xml, "text outside the root");
        if (*xml->at == '\0')
                return outside && xml->seen_root ? XML_END : bad(xml, "it ends too early");
        enum xml_event event = xml->at[1] == '/' ? close_tag(xml) : open_tag(xml);
        *end = '\0';
        return event;
}
