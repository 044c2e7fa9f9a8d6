# SPDX-License-Identifier: Apache-2.0
"""radosgw on loopback, an S3 store that checks signatures."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from pathlib import Path

from processes import ROOT, Process

KEYS = ("TESTACCESS", "testsecret")
PROGRAMS = ("radosgw", "ceph-mon", "ceph-osd", "ceph")
PART = 256 << 20
START_SECONDS = 120


class Gateway(Process):
    """The constructor returns when the store answers."""

    def __init__(self) -> None:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.folder = tempfile.mkdtemp(prefix="s3-", dir="/tmp")  # sockets below it need short names
        self.log = os.path.join(self.folder, "gateway.log")
        self.spawn(["bash", str(ROOT / "tests/lib/radosgw.sh"), self.folder, str(port)], {**os.environ}, talks=True)
        if self.read_line(START_SECONDS) != b"ready\n":
            raise RuntimeError(f"radosgw did not start: {self.tail()}")

    def kill(self) -> None:
        assert self.process is not None
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which a client reaches the store."""
        return {
            "AWS_ACCESS_KEY_ID": KEYS[0],
            "AWS_SECRET_ACCESS_KEY": KEYS[1],
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.url,
            "AWS_EC2_METADATA_DISABLED": "true",
            "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0",
        }

    def put(self, bucket: str, key: str, file: Path) -> None:
        """Writes a file, and makes the bucket if there is none."""
        import botocore.session
        from botocore.config import Config

        client = botocore.session.get_session().create_client(
            "s3",
            region_name="us-east-1",
            endpoint_url=self.url,
            aws_access_key_id=KEYS[0],
            aws_secret_access_key=KEYS[1],
            config=Config(s3={"addressing_style": "path"}),
        )
        client.create_bucket(Bucket=bucket)
        where = {"Bucket": bucket, "Key": key}
        upload = client.create_multipart_upload(**where)["UploadId"]
        parts = []
        with open(file, "rb") as source:
            while data := source.read(PART):
                number = len(parts) + 1
                reply = client.upload_part(**where, UploadId=upload, PartNumber=number, Body=data)
                parts.append({"ETag": reply["ETag"], "PartNumber": number})
        client.complete_multipart_upload(**where, UploadId=upload, MultipartUpload={"Parts": parts})
