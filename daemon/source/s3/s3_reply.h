/* SPDX-License-Identifier: Apache-2.0
 *
 * Parses an S3 store's XML (a page of ListObjectsV2, and errors) and checksums, and XML of other services. Pure.
 */
#pragma once

#include "daemon/source/listing.h"

/* ---- XML ---- */

#define XML_ELEMENTS (1u << 18)

struct xml_element {
        const char *name; /* without its prefix */
        char *text;       /* between the previous tag and the end tag; may be changed */
        unsigned depth;   /* elements around it */
};

struct xml {
        struct xml_element *elements; /* in the order of their end tags */
        size_t n;
        char *texts;
        size_t size;     /* of texts */
        const char *why; /* the text is not valid: its elements are those before the fault; NULL: it is valid */
};

/* By libexpat. Accepts only UTF-8, no document type (so only XML's predefined entities), and at most XML_ELEMENTS. */
void xml_init(struct xml *xml, const char *text, size_t size);
void xml_deinit(struct xml *xml);

/* ---- errors ---- */

struct s3_fault {
        char code[80], message[240], request_id[120];
        char region[48]; /* where the bucket is, if the error names it */
};

/* From an error's body; missing fields are "", and all of them if it is no XML, as that of a proxy. */
void s3_fault_parse(struct s3_fault *fault, const char *text, size_t size);

/* ---- lists ---- */

/* Adds the files below the prefix of a page, in encoding-type=url where it says so. *next: the token of the next page,
 * malloc'd; NULL: this is the last, or an error. */
int s3_page_parse(char **next, const char *text, size_t size, const char *prefix, struct listing *list,
                  struct error *error);

/* ---- checksums ---- */

/* From base64, as in a checksum header, to hexadecimal; false: it is of parts, or no SHA-256. */
bool s3_checksum_decode(const char *value, char hex[65]);
