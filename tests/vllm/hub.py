# SPDX-License-Identifier: Apache-2.0
"""A Hub on loopback: repositories that are folders, with the requests that the daemon makes of one."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote


class Hub:
    """Serves repositories; the context ends the server.

    `requests` has the path of each request. After hold() the last byte of each large file is sent after release().
    """

    LARGE = 1 << 20

    def __init__(self) -> None:
        self.requests: list[str] = []
        self._folders: dict[tuple[str, str], Path] = {}
        self._released = threading.Event()
        self._released.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer._answer(self)

            def do_HEAD(self) -> None:
                outer._answer(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Hub:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()
        self._server.shutdown()
        self._server.server_close()

    def add(self, repository: str, folder: Path, revision: str = "main") -> None:
        self._folders[repository, revision] = folder

    def hold(self) -> None:
        self._released.clear()

    def release(self) -> None:
        self._released.set()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        path = unquote(request.path.partition("?")[0])
        self.requests.append(path)
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/(.+)", path):
            self._list(request, match[1], match[2])
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._file(request, match[1], match[2], match[3])
        else:
            self._send(request, 404, b"")

    def _commit(self, repository: str, revision: str) -> str:
        return hashlib.sha1(f"{repository}@{revision}".encode()).hexdigest()

    def _folder(self, repository: str, revision: str) -> Path | None:
        by_commit = {(name, self._commit(name, r)): folder for (name, r), folder in self._folders.items()}
        return self._folders.get((repository, revision)) or by_commit.get((repository, revision))

    def _list(self, request: BaseHTTPRequestHandler, repository: str, revision: str) -> None:
        folder = self._folder(repository, revision)
        if folder is None:
            self._send(request, 404, b"", {"X-Error-Code": "RevisionNotFound"})
            return
        files = [{"rfilename": f.name, "size": f.stat().st_size} for f in sorted(folder.iterdir()) if f.is_file()]
        reply = {"sha": self._commit(repository, revision), "siblings": files}
        self._send(request, 200, json.dumps(reply).encode())

    def _file(self, request: BaseHTTPRequestHandler, repository: str, revision: str, name: str) -> None:
        folder = self._folder(repository, revision)
        if folder is None or not (folder / name).is_file():
            self._send(request, 404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        data = (folder / name).read_bytes()
        tag = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": self._commit(repository, revision)}
        wanted = request.headers.get("Range")
        if not wanted:
            self._send(request, 200, data, tag)
            return
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        begin, end = int(first), min(int(last or len(data)), len(data) - 1)
        if len(data) > self.LARGE and end == len(data) - 1:
            self._released.wait()
        tag["Content-Range"] = f"bytes {begin}-{end}/{len(data)}"
        self._send(request, 206, data[begin : end + 1], tag)

    def _send(
        self, request: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str] | None = None
    ) -> None:
        request.send_response(status)
        for key, value in (headers or {}).items():
            request.send_header(key, value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if request.command == "GET":
            try:
                request.wfile.write(body)
            except ConnectionError:
                pass  # a reader that stops early
