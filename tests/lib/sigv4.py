# SPDX-License-Identifier: Apache-2.0
#
# botocore's signers, line by line: reads "method<TAB>URL<TAB>region<TAB>token<TAB>checksum<TAB>body<TAB>customer" and
# prints "x-amz-date<TAB>Authorization" for each; with a body it is a form for STS. Keys are those of
# tests/unit/source/aws/sigv4_test.c.
import sys

from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

ACCESS, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"

for line in sys.stdin:
    method, url, region, token, checksum, body, customer = line.rstrip("\n").split("\t")
    request = AWSRequest(method=method, url=url, data=body)
    if checksum == "1":
        request.headers["x-amz-checksum-mode"] = "ENABLED"
    if customer == "1":
        prefix = "x-amz-server-side-encryption-customer-"
        for name, value in (("algorithm", "AES256"), ("key", "a2V5"), ("key-MD5", "bWQ1")):
            request.headers[prefix + name] = value
    if body:
        request.headers["Content-Type"] = "application/x-www-form-urlencoded"
    signer = SigV4Auth if body else S3SigV4Auth
    signer(Credentials(ACCESS, SECRET, token or None), "sts" if body else "s3", region).add_auth(request)
    print(request.headers["X-Amz-Date"], request.headers["Authorization"], sep="\t", flush=True)
