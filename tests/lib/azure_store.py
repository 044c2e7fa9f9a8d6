# SPDX-License-Identifier: Apache-2.0
#
# azure_store.py ACCOUNT KEY PAGE: an Azure Blob store on loopback, in path style, that checks what it is sent: SharedKey
# signatures, SAS, bearer tokens, If-Match. It also takes the part of the services that give tokens. The first line that
# it prints is its port; then it reads commands, one per line, fields separated by tabs, and answers each with a line:
#
#   put CONTAINER NAME FILE [directory|stub|archive|forbidden]    clear
#   valid TOKEN          the only token that is accepted from now on ("": each that was given)
#   replace CONTAINER NAME RANGE    the blob is replaced before this one of its ranges is answered, from 1
#   count WHAT           of: list, range, unpinned, token, refused
#   fail N               so many answers of the metadata service are 404 first
import base64
import hashlib
import hmac
import json
import sys
import threading
import time
import urllib.parse
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.sax.saxutils import escape

ACCOUNT, KEY, PAGE = sys.argv[1], sys.argv[2], int(sys.argv[3])
SAS = "sv=2023-11-03&se=2099-01-01T00%3A00%3A00Z&sp=rl&sig=the%2Fsecret%2Bsas%3D"
lock = threading.RLock()
blobs = {}  # (container, name): dict
counts = {}
state = {"valid": "", "fail": 0, "given": set()}


def count(what):
    with lock:
        counts[what] = counts.get(what, 0) + 1
        return counts[what]


def give_token():
    token = "T%d" % count("token")
    state["given"].add(token)
    return token


def is_valid_xml(name):
    return all(c >= " " or c in "\t\n\r" for c in name) and not any(c in "\ufffe\uffff" for c in name)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, body=b"", headers=()):
        self.send_response_only(status)
        for name, value in (("Date", formatdate(usegmt=True)), ("x-ms-request-id", "req-1"), *headers):
            self.send_header(name, value)
        if "Content-Length" not in dict(headers):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status, code, message, headers=()):
        count("refused")
        text = "\ufeff<?xml version=\"1.0\" encoding=\"utf-8\"?><Error><Code>%s</Code><Message>%s\nRequestId:req-1\nTime:now" \
               "</Message></Error>" % (code, escape(message))
        self.answer(status, text.encode(), (("x-ms-error-code", code), ("Content-Type", "application/xml"), *headers))

    def give_json(self, status, value, headers=()):
        self.answer(status, json.dumps(value).encode(), (("Content-Type", "application/json"), *headers))

    # ---- authorization ----

    def string_to_sign(self, path, query):
        h = self.headers
        length = h.get("Content-Length", "")
        lines = [self.command, h.get("Content-Encoding", ""), h.get("Content-Language", ""),
                 "" if length == "0" else length, h.get("Content-MD5", ""), h.get("Content-Type", ""),
                 "" if h.get("x-ms-date") else h.get("Date", ""), h.get("If-Modified-Since", ""), h.get("If-Match", ""),
                 h.get("If-None-Match", ""), h.get("If-Unmodified-Since", ""), h.get("Range", "")]
        lines += sorted("%s:%s" % (n.lower(), v.strip()) for n, v in h.items() if n.lower().startswith("x-ms-"))
        resource = "/%s%s" % (ACCOUNT, path)
        values = {}
        for name, value in query:
            values.setdefault(name.lower(), []).append(value)
        resource += "".join("\n%s:%s" % (n, ",".join(sorted(values[n]))) for n in sorted(values))
        return "\n".join(lines) + "\n" + resource

    def refusal(self, path, query, container):
        """None, or why the request is not authorized."""
        authorization = self.headers.get("Authorization", "")
        named = dict(query)
        if not self.headers.get("x-ms-version"):
            return 400, "InvalidHeaderValue", "no x-ms-version"
        if authorization.startswith("SharedKey "):
            digest = hmac.new(base64.b64decode(KEY), self.string_to_sign(path, query).encode(), hashlib.sha256).digest()
            if authorization == "SharedKey %s:%s" % (ACCOUNT, base64.b64encode(digest).decode()):
                return None
            return 403, "AuthenticationFailed", "Server failed to authenticate the request. Make sure the value of " \
                                                "Authorization header is formed correctly including the signature."
        if authorization.startswith("Bearer "):
            token = authorization[len("Bearer "):]
            if token == state["valid"] or (not state["valid"] and token in state["given"]):
                return None
            return 401, "InvalidAuthenticationInfo", "Server failed to authenticate the request."
        if "sig" in named:
            given = dict(urllib.parse.parse_qsl(SAS))
            return None if all(named.get(n) == v for n, v in given.items()) else \
                (403, "AuthenticationFailed", "Signature did not match.")
        return None if container.startswith("public") else \
            (409, "PublicAccessNotPermitted", "Public access is not permitted on this storage account.")

    # ---- tokens ----

    def tokens(self, path, query, body):
        form = dict(urllib.parse.parse_qsl(body))
        if path == "/tenant/oauth2/v2.0/token":
            secret = form.get("client_secret") == "thesecret" and "client_assertion" not in form
            assertion = form.get("client_assertion") == "the.federated.token" and form.get("client_assertion_type") == \
                "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
            if form.get("client_id") == "client" and form.get("grant_type") == "client_credentials" and \
                    form.get("scope") == "https://storage.azure.com/.default" and (secret or assertion):
                return self.give_json(200, {"token_type": "Bearer", "expires_in": 3599, "access_token": give_token()})
            return self.give_json(401, {"error": "invalid_client", "error_description": "AADSTS7000215: no such client"})
        named = dict(query)
        client = named.get("client_id", "")
        if path == "/metadata/identity/oauth2/token" and self.headers.get("Metadata") == "true" and \
                named.get("api-version") == "2018-02-01" and named.get("resource") == "https://storage.azure.com":
            if state["fail"] > 0:
                state["fail"] -= 1
                return self.give_json(404, {"error": "not_found"})
            if client not in ("", "client"):
                return self.give_json(400, {"error": "invalid_request", "error_description": "Identity not found"})
            return self.give_json(200, {"access_token": give_token(), "expires_on": str(int(time.time()) + 3600)})
        if path == "/msi" and self.headers.get("X-IDENTITY-HEADER") == "the-header" and \
                named.get("api-version") == "2019-08-01":
            return self.give_json(200, {"access_token": give_token(), "expires_on": str(int(time.time()) + 3600)})
        return self.give_json(400, {"error": "invalid_request"})

    # ---- blobs ----

    def list(self, container, query):
        named = dict(query)
        prefix, delimiter, marker = named.get("prefix", ""), named.get("delimiter"), named.get("marker", "")
        page = min(int(named.get("maxresults", 5000)), PAGE)
        count("list")
        names, prefixes = [], []
        for (own, name), blob in sorted(blobs.items()):
            if own != container or not name.startswith(prefix):
                continue
            rest = name[len(prefix):]
            if delimiter and delimiter in rest:
                below = prefix + rest[:rest.index(delimiter) + 1]
                if below not in prefixes:
                    prefixes.append(below)
                    names.append((below, None))
            else:
                names.append((name, blob))
        start = int(marker.split("!")[1]) if marker else 0
        if names and not marker and PAGE < 10:  # an empty page, which has a marker
            chosen, following = [], "m!0"
        else:
            chosen = names[start:start + page]
            following = "m!%d" % (start + page) if start + page < len(names) else ""
        items = ""
        for name, blob in chosen:
            text = "<Name>%s</Name>" % escape(name) if is_valid_xml(name) else \
                "<Name Encoded=\"true\">%s</Name>" % urllib.parse.quote(name)
            if blob is None:
                items += "<BlobPrefix>%s</BlobPrefix>" % text
                continue
            kind = "<ResourceType>%s</ResourceType>" % ("directory" if blob["kind"] == "directory" else "file")
            metadata = "<Metadata><hdi_isfolder>true</hdi_isfolder></Metadata>" if blob["kind"] == "stub" else "<Metadata />"
            items += "<Blob>%s<Properties><Last-Modified>%s</Last-Modified><Etag>%s</Etag><Content-Length>%d" \
                     "</Content-Length><Content-Type>application/octet-stream</Content-Type>%s<BlobType>BlockBlob</BlobType></Properties>%s</Blob>" % (
                         text, formatdate(usegmt=True), blob["etag"], len(blob["data"]), kind, metadata)
        self.answer(200, ("\ufeff<?xml version=\"1.0\" encoding=\"utf-8\"?><EnumerationResults ServiceEndpoint=\"x\" "
                          "ContainerName=\"%s\"><Prefix>%s</Prefix><Blobs>%s</Blobs>%s</EnumerationResults>" % (
                              container, escape(prefix), items,
                              "<NextMarker>%s</NextMarker>" % following if following else "<NextMarker />")).encode(),
                    (("Content-Type", "application/xml"),))

    def give_blob(self, container, name):
        blob = blobs.get((container, name))
        if blob is None:
            return self.refuse(404, "BlobNotFound", "The specified blob does not exist.")
        if blob["kind"] == "archive":
            return self.refuse(409, "BlobArchived", "This operation is not permitted on an archived blob.")
        if blob["kind"] == "forbidden":
            return self.refuse(403, "AuthorizationPermissionMismatch", "This request is not authorized to perform this "
                                                                       "operation using this permission.")
        count("range")
        with lock:
            blob["ranges"] += 1
            if blob["ranges"] == blob["replace"]:
                blob["etag"] += "1"
        wanted, data = self.headers.get("If-Match"), blob["data"]
        if wanted is None:
            count("unpinned")
        elif wanted.strip('"') != blob["etag"]:
            return self.refuse(412, "ConditionNotMet", "The condition specified using HTTP conditional header(s) is not met.")
        headers = [("ETag", '"%s"' % blob["etag"]), ("Last-Modified", formatdate(1700000000, usegmt=True)),
                   ("Accept-Ranges", "bytes"), ("x-ms-blob-type", "BlockBlob"),
                   ("Content-Type", "application/octet-stream")]
        text = self.headers.get("x-ms-range") or self.headers.get("Range")
        if self.command == "HEAD" or not text:
            return self.answer(200, data, headers + [("Content-Length", str(len(data)))])
        first, _, last = text.partition("=")[2].partition("-")
        first, last = int(first), min(int(last) if last else len(data) - 1, len(data) - 1)
        if first >= len(data):
            return self.refuse(416, "InvalidRange", "The range specified is invalid.", (("Content-Range", "bytes */%d" % len(data)),))
        self.answer(206, data[first:last + 1], headers + [("Content-Range", "bytes %d-%d/%d" % (first, last, len(data)))])

    def serve(self):
        path, _, text = self.path.partition("?")
        query = urllib.parse.parse_qsl(text, keep_blank_values=True)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode("latin-1")
        parts = path.split("/", 3)
        if len(parts) < 3 or parts[1] != ACCOUNT:
            return self.tokens(path, query, body)
        container, name = parts[2], urllib.parse.unquote(parts[3]) if len(parts) > 3 else ""
        why = self.refusal(path, query, container)
        if why is not None:
            return self.refuse(*why, (("WWW-Authenticate", "Bearer authorization_uri=x"),) if why[0] == 401 else ())
        if container not in {c for c, _ in blobs}:
            return self.refuse(404, "ContainerNotFound", "The specified container does not exist.")
        if dict(query).get("comp") == "list":
            return self.list(container, query)
        return self.give_blob(container, name)

    do_GET = do_HEAD = do_POST = serve


def do(verb, *args):
    if verb == "put":
        with open(args[2], "rb") as f:
            data = f.read()
        kind = args[3] if len(args) > 3 else ""
        blobs[args[0], args[1].replace("\\x01", "\x01")] = {
            "data": data, "etag": "0x8D%012X" % (len(blobs) + 1), "kind": kind, "ranges": 0, "replace": 0}
    elif verb == "clear":
        blobs.clear()
        counts_kept = counts.get("token", 0)
        counts.clear()
        counts["token"] = counts_kept
        state["valid"] = ""
    elif verb == "valid":
        state["valid"] = args[0] if args else ""
    elif verb == "replace":
        blobs[args[0], args[1]]["replace"] = int(args[2])
    elif verb == "count":
        return str(counts.get(args[0], 0))
    elif verb == "fail":
        state["fail"] = int(args[0])
    else:
        raise ValueError(verb)
    return "ok"


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, address):
        if not isinstance(sys.exc_info()[1], ConnectionError):  # a client need not read to the end
            super().handle_error(request, address)

    request_queue_size = 128


server = Server(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_address[1], flush=True)
for line in sys.stdin:
    try:
        print(do(*line.rstrip("\n").split("\t")), flush=True)
    except Exception as e:  # the test that asked says what failed
        print("error: %r" % e, flush=True)
