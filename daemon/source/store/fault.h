/* SPDX-License-Identifier: Apache-2.0
 *
 * What a store says of a refusal, and the error that is made of it.
 */
#pragma once

#include "daemon/io/http/http.h"
#include "daemon/source/store/renewal.h"

struct store_fault {
        char code[80], message[240], request_id[120];
        char region[48]; /* where the bucket is, if the error of S3 names it */
};

/* From an error's body <Code>, <Message>, <RequestId>, <Region>; missing fields are "", and all of them if it is no
 * XML, as that of a proxy. */
void store_fault_parse_xml(struct store_fault *fault, const char *text, size_t size);
/* From {"error": {"message", "errors": [{"reason"}], "status"}}, or {"error": "code", "error_description": "message"}
 * of token endpoints. Changes the text. */
void store_fault_parse_json(struct store_fault *fault, char *text, size_t size);
/* From the body of a refusal in either form, or of plain text; a copy is parsed. */
void store_fault_read(struct store_fault *fault, const struct http_answer *answer, const char *request_id_header);

/* STREAMER_ENOENT (404, 410), STREAMER_EPERM (401, 403), else STREAMER_EFAILED. */
int store_fault_code(int status);

/* "403 AccessDenied: no (s3://b/key, request R1, credentials from settings)". `before` precedes it, or is "". `renewal`
 * NULL: the request had no credentials, and `without` says so. */
int store_fault_report(const struct store_fault *fault, const struct http_request *request, int status,
                       const char *before, struct renewal *renewal, const char *without, int code, struct error *error);
