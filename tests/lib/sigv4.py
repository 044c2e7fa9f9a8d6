# SPDX-License-Identifier: Apache-2.0
#
# botocore's signer, line by line: reads "method<TAB>URL<TAB>region<TAB>token<TAB>checksum" and prints
# "x-amz-date<TAB>Authorization" for each. Keys are those of tests/unit/test_s3_sign.c.
import sys

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

ACCESS, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"

for line in sys.stdin:
    method, url, region, token, checksum = line.rstrip("\n").split("\t")
    request = AWSRequest(method=method, url=url)
    if checksum == "1":
        request.headers["x-amz-checksum-mode"] = "ENABLED"
    S3SigV4Auth(Credentials(ACCESS, SECRET, token or None), "s3", region).add_auth(request)
    print(request.headers["X-Amz-Date"], request.headers["Authorization"], sep="\t", flush=True)
