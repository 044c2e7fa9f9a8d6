# SPDX-License-Identifier: Apache-2.0
"""A store on loopback with the two requests of S3 that the daemon makes: a prefix's list, and a range of an object."""

from __future__ import annotations

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class Store:
    """The objects of every bucket, by key."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                url = urlsplit(self.path)
                key = unquote(url.path).lstrip("/").partition("/")[2]
                if key:
                    self._send_object(key)
                else:
                    query = parse_qs(url.query, keep_blank_values=True)
                    self._send(200, outer.listing(query.get("prefix", [""])[0], query.get("delimiter", [""])[0]))

            def _send_object(self, key: str) -> None:
                data = outer.objects.get(key)
                if data is None:
                    self._send(404, b"<Error><Code>NoSuchKey</Code></Error>")
                    return
                first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
                part = data[int(first) : int(last or len(data)) + 1]
                end = int(first) + len(part) - 1
                self._send(206, part, {"Content-Range": f"bytes {first}-{end}/{len(data)}", "ETag": outer.etag(key)})

            def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
                self.send_response(status)
                for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self.settings = f"s3: {{endpoint: '{endpoint}', unsigned: true, region: us-east-1}}"

    def etag(self, key: str) -> str:
        return f'"{hashlib.md5(self.objects[key]).hexdigest()}"'

    def listing(self, prefix: str, delimiter: str) -> bytes:
        keys = [key for key in sorted(self.objects) if key.startswith(prefix)]
        shown = [key for key in keys if not delimiter or delimiter not in key[len(prefix) :]]
        entries = (
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.objects[key])}</Size>"
            f"<ETag>{escape(self.etag(key))}</ETag></Contents>"
            for key in shown
        )
        body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(entries)}</ListBucketResult>"
        return body.encode()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
