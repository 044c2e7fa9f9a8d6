# SPDX-License-Identifier: Apache-2.0
#
# store.py ENDPOINT ACCESS SECRET: fills a store by botocore. Reads commands, one per line,
# fields separated by tabs, and answers each with a line:
#
#   bucket NAME          open NAME              put BUCKET KEY FILE
#   many BUCKET PREFIX N    delete BUCKET KEY      session ARN SECONDS
#   presign BUCKET KEY   encrypt BUCKET KEY FILE CUSTOMERS-KEY
import json
import sys

import botocore.session
from botocore.config import Config

endpoint, access, secret = sys.argv[1:4]


def client(service):
    return botocore.session.get_session().create_client(
        service, region_name="us-east-1", endpoint_url=endpoint, aws_access_key_id=access, aws_secret_access_key=secret,
        config=Config(signature_version="s3v4" if service == "s3" else None, s3={"addressing_style": "path"},
                      retries={"max_attempts": 2}))


s3 = client("s3")


def do(verb, *args):
    if verb == "bucket":
        s3.create_bucket(Bucket=args[0])
    elif verb == "open":  # to everybody, with all that is in it
        policy = {"Version": "2012-10-17", "Statement": [{
            "Effect": "Allow", "Principal": {"AWS": ["*"]}, "Action": ["s3:ListBucket", "s3:GetObject"],
            "Resource": ["arn:aws:s3:::" + args[0], "arn:aws:s3:::" + args[0] + "/*"]}]}
        s3.put_bucket_policy(Bucket=args[0], Policy=json.dumps(policy))
    elif verb == "put":
        with open(args[2], "rb") as f:
            s3.put_object(Bucket=args[0], Key=args[1], Body=f)
    elif verb == "encrypt":  # SSE-C, with a key of 32 characters
        with open(args[2], "rb") as f:
            s3.put_object(Bucket=args[0], Key=args[1], Body=f, SSECustomerAlgorithm="AES256", SSECustomerKey=args[3])
    elif verb == "many":
        for i in range(int(args[2])):
            s3.put_object(Bucket=args[0], Key="%s%05d" % (args[1], i), Body=b"")
    elif verb == "presign":
        return s3.generate_presigned_url("get_object", Params={"Bucket": args[0], "Key": args[1]}, ExpiresIn=3600)
    elif verb == "delete":
        s3.delete_object(Bucket=args[0], Key=args[1])
    elif verb == "session":
        answer = client("sts").assume_role(RoleArn=args[0], RoleSessionName="test", DurationSeconds=int(args[1]))
        c = answer["Credentials"]
        return "\t".join((c["AccessKeyId"], c["SecretAccessKey"], c["SessionToken"]))
    else:
        raise ValueError(verb)
    return "ok"


for line in sys.stdin:
    try:
        print(do(*line.rstrip("\n").split("\t")), flush=True)
    except Exception as e:  # the test that asked says what failed
        print("error: %s" % str(e).replace("\n", " "), flush=True)
