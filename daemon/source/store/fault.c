/* SPDX-License-Identifier: Apache-2.0
 *
 * The body of an error is parsed leniently: it is read after a failure and must not fail itself.
 */
#include "daemon/source/store/fault.h"

#include "daemon/base/text/secret.h"
#include "daemon/base/util.h"
#include "daemon/io/http/transfer.h"
#include "daemon/source/store/json_values.h"
#include "daemon/source/store/xml.h"

/* The first of several elements with one name counts. */
void store_fault_parse_xml(struct store_fault *fault, const char *text, size_t size)
{
        const struct {
                const char *name;
                char *to;
                size_t size;
        } fields[] = {{"Code", fault->code, sizeof(fault->code)},
                      {"Message", fault->message, sizeof(fault->message)},
                      {"RequestId", fault->request_id, sizeof(fault->request_id)},
                      {"Region", fault->region, sizeof(fault->region)}};
        cleanup_with(xml_deinit) struct xml xml;
        *fault = (struct store_fault){.code = ""};
        xml_init(&xml, text, size);
        for (size_t i = 0; i < xml.n; i++)
                for (size_t k = 0; k < ARRAY_SIZE(fields); k++)
                        if (strcmp(xml.elements[i].name, fields[k].name) == 0 && fields[k].to[0] == '\0')
                                error_escape(fields[k].to, fields[k].size, xml.elements[i].text);
}

void store_fault_parse_json(struct store_fault *fault, char *text, size_t size)
{
        cleanup_with(json_values_deinit) struct json_values values;
        *fault = (struct store_fault){.code = ""};
        if (!json_values_init(&values, text, size))
                return;
        const char *code = json_values_get(&values, "error.errors.0.reason") ?: json_values_get(&values, "error.status")
                                   ?: json_values_get(&values, "error") ?: "";
        const char *message = json_values_get(&values, "error.message")
                                      ?: json_values_get(&values, "error_description") ?: "";
        error_escape(fault->code, sizeof(fault->code), code);
        error_escape(fault->message, sizeof(fault->message), message);
}

void store_fault_read(struct store_fault *fault, const struct http_answer *answer, const char *request_id_header)
{
        const char *id = http_headers_find(&answer->headers, request_id_header);
        cleanup_free char *text = answer->body_len > 0 ? strndup(answer->body, answer->body_len) : NULL;
        *fault = (struct store_fault){.code = ""};
        if (text != NULL && text[strspn(text, " \t\r\n")] == '{')
                store_fault_parse_json(fault, text, strlen(text));
        else if (text != NULL)
                store_fault_parse_xml(fault, text, strlen(text));
        if (fault->request_id[0] == '\0' && id != NULL)
                error_escape(fault->request_id, sizeof(fault->request_id), id);
}

int store_fault_code(int status)
{
        if (status == 404 || status == 410)
                return STREAMER_ENOENT;
        return status == 401 || status == 403 ? STREAMER_EPERM : STREAMER_EFAILED;
}

int store_fault_report(const struct store_fault *fault, const struct http_request *request, int status,
                       const char *before, struct renewal *renewal, const char *without, int code, struct error *error)
{
        char text[1024] = "", credentials[512] = "";
        format_append(text, sizeof(text), "%sthe store answers %d", before, status);
        if (fault->code[0] != '\0')
                format_append(text, sizeof(text), " %s", fault->code);
        if (fault->message[0] != '\0')
                format_append(text, sizeof(text), ": %s", fault->message);
        format_append(text, sizeof(text), " (%s, ", request->shown);
        if (fault->request_id[0] != '\0')
                format_append(text, sizeof(text), "request %s, ", fault->request_id);
        if (renewal != NULL)
                renewal_describe(renewal, credentials, sizeof(credentials));
        format_append(text, sizeof(text), "%s)", renewal != NULL ? credentials : without);
        return error_set(error, code, "%s", text);
}
