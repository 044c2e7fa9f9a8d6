# SPDX-License-Identifier: Apache-2.0
"""An HTTP server that sends the beginning of a file, and the rest when a test allows it, or each reply late."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from checkpoints import write


class SlowServer:
    """Byte ranges that end at or before `limit` are served at once, all others after release(); each `latency` late."""

    def __init__(self, folder: Path) -> None:
        self.latency = 0.0
        self._folder = folder
        self._released = threading.Event()
        self._held = threading.Event()
        self._files: dict[str, bytes] = {}
        self._limits: dict[str, int] = {}
        self._contents: dict[str, dict[str, bytes]] = {}
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
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def serve(self, name: str, tensors: list[tuple[str, str, list[int]]], first: int = 0) -> str:
        """The URL of a file of which `first` tensors arrive before release()."""
        path = self._folder / name
        self._contents[name] = write(path, tensors)
        contents = list(self._contents[name].values())
        data = path.read_bytes()
        self._files["/" + name] = data
        self._limits["/" + name] = len(data) - sum(len(content) for content in contents[first:])
        path.unlink()
        return f"http://127.0.0.1:{self._server.server_port}/{name}"

    def contents(self, name: str) -> dict[str, bytes]:
        """The bytes of each tensor of a file that is served."""
        return self._contents[name]

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        time.sleep(self.latency)
        data = self._files.get(request.path)
        if data is None:
            request.send_error(404)
            return
        begin, end = 0, len(data) - 1
        wanted = request.headers.get("Range")
        if wanted:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            begin, end = int(first), min(int(last or end), end)
        request.send_response(206 if wanted else 200)
        if wanted:
            request.send_header("Content-Range", f"bytes {begin}-{end}/{len(data)}")
        request.send_header("Accept-Ranges", "bytes")
        request.send_header("ETag", '"1"')
        request.send_header("Content-Length", str(end + 1 - begin))
        request.end_headers()
        if request.command == "HEAD":
            return
        try:
            ready = max(begin, min(end + 1, self._limits[request.path]))
            request.wfile.write(data[begin:ready])
            if ready <= end:
                self._held.set()
                self._released.wait()
                request.wfile.write(data[ready : end + 1])
        except OSError:
            pass  # the client has gone

    def wait_until_held(self) -> None:
        """Until a request waits for release()."""
        assert self._held.wait(20)

    def release(self) -> None:
        self._released.set()

    def close(self) -> None:
        self._released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
