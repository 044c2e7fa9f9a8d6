/* SPDX-License-Identifier: Apache-2.0
 *
 * What is signed is the header's text without the member that holds the signature, and without the padding at its end.
 * It is compact, so it is not written anew: the member is cut out, and put back. The parser has to find the member in
 * the metadata at the same place (encrypted_file.c). Then nothing else can be meant: without it the text has the same
 * structure.
 */
#include "daemon/crypt/encrypted_file.h"

#include "daemon/base/text/base64.h"

#include <openssl/evp.h>
#include <string.h>

#define MEMBER "\"__signature__\":\""
#define DIGITS 88u /* of base64 */
#define CUT_MAX (sizeof(MEMBER) + DIGITS + 2)

/* 1: it is the signer's; 0: it is not; less: OpenSSL fails. */
static int verify(const struct signer *signer, const unsigned char *signature, const char *text, size_t n)
{
        EVP_MD_CTX *context = EVP_MD_CTX_new();
        int r = -1;
        if (context != NULL && EVP_DigestVerifyInit(context, NULL, NULL, NULL, signer->key) == 1)
                r = EVP_DigestVerify(context, signature, SIGNATURE_BYTES, (const unsigned char *)text, n);
        EVP_MD_CTX_free(context);
        return r;
}

void signed_text_check(struct signed_text *checked, char *text, size_t n, const struct keyring *keyring)
{
        char digits[DIGITS], cut[CUT_MAX];
        size_t decoded;
        *checked = (struct signed_text){.found = false};
        char *from = memmem(text, n, MEMBER, strlen(MEMBER));
        while (n > 0 && text[n - 1] == ' ')
                n--;
        if (from == NULL || (size_t)(text + n - from) < strlen(MEMBER) + DIGITS + 2)
                return;
        char *value = from + strlen(MEMBER), *end = value + DIGITS;
        memcpy(digits, value, DIGITS);
        if (*end++ != '"' || !base64_decode(digits, DIGITS, BASE64_STANDARD, &decoded) || decoded != SIGNATURE_BYTES)
                return;
        checked->found = true;
        checked->at = (uint32_t)(value - text);
        /* With one comma: the next, or the one before the last member. */
        if (*end == ',')
                end++;
        else if (from > text && from[-1] == ',')
                from--;
        size_t len = (size_t)(end - from), after = (size_t)(text + n - end);
        memcpy(cut, from, len);
        memmove(from, end, after);
        for (size_t i = 0; checked->signer == NULL && i < keyring->n_signers; i++) {
                int r = verify(&keyring->signers[i], (const unsigned char *)digits, text, n - len);
                if (r == 1)
                        checked->signer = &keyring->signers[i];
                checked->failed = checked->failed || r < 0;
        }
        memmove(end, from, after);
        memcpy(from, cut, len);
}
