#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds of tests/fuzz/corpus/{frame,message,manifest,snapshot,commit_record,
published_table,disk_record,disk_source}. Run by hand when one of these formats changes."""

import os
import struct

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus")


def put(folder, name, data):
    os.makedirs(os.path.join(HERE, folder), exist_ok=True)
    with open(os.path.join(HERE, folder, name), "wb") as f:
        f.write(data)


# ---- msgpack: the subset for the seeds ----


def text(s):
    b = s.encode("utf-8", "surrogateescape")
    return (bytes([0xA0 | len(b)]) if len(b) < 32 else struct.pack(">BH", 0xDA, len(b))) + b


def number(n):
    if n < 0:
        return struct.pack(">Bq", 0xD3, n) if n < -32 else struct.pack("b", n)
    return bytes([n]) if n < 128 else struct.pack(">BQ", 0xCF, n)


def pack(o):
    if o is None:
        return b"\xc0"
    if isinstance(o, bool):
        return b"\xc3" if o else b"\xc2"
    if isinstance(o, int):
        return number(o)
    if isinstance(o, float):
        return struct.pack(">Bd", 0xCB, o)
    if isinstance(o, str):
        return text(o)
    if isinstance(o, bytes):
        return struct.pack(">BB", 0xC4, len(o)) + o
    if isinstance(o, list):
        head = bytes([0x90 | len(o)]) if len(o) < 16 else struct.pack(">BH", 0xDC, len(o))
        return head + b"".join(map(pack, o))
    head = bytes([0x80 | len(o)]) if len(o) < 16 else struct.pack(">BH", 0xDE, len(o))
    return head + b"".join(pack(k) + pack(v) for k, v in o.items())


def frame(body):
    return struct.pack(">I", len(body)) + body


# ---- frames: the first byte is the size of the pieces, less one ----

FRAMES = {
    "two-frames": b"\xff" + frame(b"first") + frame(b"second"),
    "byte-by-byte": b"\x00" + frame(b"hello, world") + frame(b"x"),
    "pieces-of-three": b"\x02" + frame(b"abcdefgh") * 3,
    "length-zero": b"\x10" + frame(b"a") + b"\0\0\0\0rest",
    "length-over-the-limit": b"\x10" + frame(b"a") + b"\0\x10\0\x01rest",
    "length-at-the-limit-cut": b"\x10" + b"\0\x10\0\0rest",
    "header-cut": b"\x05" + frame(b"abc") + b"\0\0",
    "body-cut": b"\x05" + frame(b"abc") + b"\0\0\0\x09ab",
    "longer-than-the-first-buffer": b"\xff" + frame(bytes(5000)) + frame(b"after"),
    "largest-length-word": b"\x00" + b"\xff\xff\xff\xff",
}
for name, data in FRAMES.items():
    put("frame", name, data)

# ---- messages ----

REQUESTS = {
    "hello": {"min": 1, "max": 1, "client": "c"},
    "load": {
        "source": "/m/a.safetensors",
        "name": "org/name",
        "devices": ["cuda:0", "host"],
        "verify": "sha256",
        "dry_run": True,
        "watch": False,
    },
    "list": {"after": "a", "limit": 10},
    "show": {"model": "m", "tensors": True, "offset": 2**40, "limit": 5},
    "ps": {"after": 2**64 - 1},
    "wait": {"model": "m", "timeout_ms": 1000},
    "unload": {"model": "m", "drain": True},
    "attach": {"model": "m", "device": "host", "digest": "0" * 32, "generation": 3, "ready": True},
    "detach": {"lease": 9},
    "ping": {},
}
for verb, fields in REQUESTS.items():
    put("message", "request-" + verb, pack({"verb": verb, "id": 7, **fields}))


def cancel(model):
    return pack({"verb": "cancel", "id": 1, "model": model})


SEGMENT = {"kind": "memfd", "fd": 1, "size": 2**21, "offset": 0, "uuid": "u", "generation": 3, "digest": "d"}
ATTACH = {"id": 2, "ok": True, "lease": 1, "model": "m", "generation": 3, "digest": "", "state": "loading"}
ATTACH |= {"device": "host", "device_kind": "host", "bytes": 1, "manifest": {"fd": 0, "size": 4096}}
ATTACH |= {"arrival": {"fd": 2, "size": 64}, "arrived": 0, "segments": [SEGMENT]}
KINDS = {"id": 2, "ok": True, "a": -1, "b": -(2**40), "c": 2**63, "d": 1.5, "e": b"\0\xff", "f": None}
KINDS |= {"g": [True, False, []], "h": {}}
MESSAGES = {
    "unknown-verb": pack({"verb": "lod\x1b", "id": 1}),
    "unknown-field": pack({"verb": "ping", "id": 1, "x": None}),
    "duplicate-field": b"\x83" + b"".join(map(pack, ["verb", "ping", "id", 1, "id", 2])),
    "wrong-type": cancel(5),
    "nul-in-a-string": cancel("a\0b"),
    "not-utf8": cancel("\udcc3("),
    "too-long": cancel("m" * 1025),
    "too-many-devices": pack({"verb": "load", "id": 1, "source": "s", "devices": ["d"] * 65}),
    "key-not-a-string": b"\x81\x01\x02",
    "deep": b"\x91" * 13 + b"\x00",
    "deep-enough": b"\x91" * 12 + b"\x00",
    "length-lies": b"\x81\xa1k\xdb\xff\xff\xff\xffx",
    "map-length-lies": b"\xdf\xff\xff\xff\xff",
    "trailing-bytes": pack({"verb": "ping", "id": 1}) + b"\0",
    "never-used-tag": b"\x81\xa1k\xc1",
    "ext": b"\x81\xa1k\xc7\x04\x05abcd",
    "reply-attach": pack(ATTACH),
    "reply-error": pack({"id": 2, "ok": False, "code": "in-use", "text": "unload: two leases"}),
    "reply-kinds": pack(KINDS),
    "event": pack({"event": "op", "op": 1, "state": "ready", "bytes": 1}),
}
for name, data in MESSAGES.items():
    put("message", name, data)

# ---- manifests: a valid one, and each field invalid ----


def manifest(recs, shapes, strings, segs, meta, **wrong):
    h = {"version": 1, "header_size": 136, "generation": 1, "data_bytes": 0, "segments_off": 136}
    h["records_off"] = 136 + 16 * len(segs)
    h["metadata_off"] = h["records_off"] + 64 * len(recs)
    h["shapes_off"] = h["metadata_off"] + 24 * len(meta)
    h["strings_off"] = h["shapes_off"] + 8 * len(shapes)
    h["size"] = h["strings_off"] + len(strings)
    h.update(n_records=len(recs), n_shapes=len(shapes), strings_len=len(strings))
    h.update(n_segments=len(segs), record_size=64, n_metadata=len(meta))
    h.update(wrong)
    longs = "size generation data_bytes segments_off records_off n_records metadata_off shapes_off n_shapes"
    longs += " strings_off strings_len"
    return b"".join(
        [b"strmman1", struct.pack("<II", h["version"], h["header_size"])]
        + [struct.pack("<Q", h[k]) for k in longs.split()]
        + [struct.pack("<IIII", h["n_segments"], h["record_size"], h["n_metadata"], 0), bytes(16)]
        + [struct.pack("<QQ", s, 0) for s in segs]
        + [struct.pack("<QIIQIIQQ16s", *r, bytes(16)) for r in recs]
        + [struct.pack("<QQII", *m) for m in meta]
        + [struct.pack("<Q", d) for d in shapes]
        + [strings]
    )


# name_off, name_len, dtype, shape_off, rank, segment, offset, bytes
RECORDS = [(0, 1, 1, 0, 1, 0, 0, 4), (2, 6, 14, 1, 2, 0, 16, 24)]
GOOD = {
    "recs": RECORDS,
    "shapes": [4, 2, 3],
    "strings": b"a\0weight\0format\0pt\0",
    "segs": [64],
    "meta": [(9, 16, 6, 2)],
}


def second(name, record):
    put("manifest", name, manifest(**{**GOOD, "recs": [RECORDS[0], record]}))


put("manifest", "two-tensors", manifest(**GOOD))
put("manifest", "empty", manifest([], [], b"", [], []))
put("manifest", "cut", manifest(**GOOD)[:-10])
put("manifest", "wrong-version", manifest(**GOOD, version=2))
put("manifest", "shape-overflows", manifest(**{**GOOD, "shapes": [4, 2**63, 2]}))
FIELDS = "size segments_off records_off n_records metadata_off shapes_off n_shapes strings_off strings_len"
for field in FIELDS.split() + ["n_segments", "n_metadata"]:
    put("manifest", "large-" + field, manifest(**GOOD, **{field: 0xFFFFFFF8}))
for field in FIELDS.split():
    put("manifest", "huge-" + field, manifest(**GOOD, **{field: 2**64 - 8}))
second("name-outside", (100, 6, 14, 1, 2, 0, 16, 24))
second("name-without-end", (2, 5, 14, 1, 2, 0, 16, 24))
second("unknown-dtype", (2, 6, 99, 1, 2, 0, 16, 24))
second("shape-outside", (2, 6, 14, 2, 2, 0, 16, 24))
second("bytes-wrong", (2, 6, 14, 1, 2, 0, 16, 23))
second("segment-outside", (2, 6, 14, 1, 2, 1, 16, 24))
second("offset-outside", (2, 6, 14, 1, 2, 0, 41, 24))
second("offset-wraps", (2, 6, 14, 1, 2, 0, 2**64 - 1, 24))

# ---- snapshots: the number of leases, these, the map; the target appends the checksum ----

def device(uuid, pinned=False):
    return {"uuid": uuid, "pinned": pinned}


FACTS = {"name": "org/name", "source": "/m/a", "generation": 1, "verified": True}
FACTS |= {"uid": 1000, "gid": 100, "groups": [100, 27], "pattern": ""}
MODEL = {**FACTS, "priority": 100, "keep_alive_ns": 0, "drain_timeout_ns": 10**9, "pinned": True}
MODEL |= {"owner": 1000, "ranks": False, "devices": [device("6c3b2f0e-0000-0000-0000-000000000001", True)]}


NAME = {"model": 3, "name": "org/name", "keep_alive_ns": 0, "drain_timeout_ns": 10**9, "priority": 100}
NAME |= {"pinned": True, "owner": 1000, "charged": 1001}


def state(*models, leases=b"", **wrong):
    map = {"last_generation": 7, "models": list(models), "names": [], **wrong}
    return bytes([len(leases) // 64]) + leases + pack(map)


def lease(number, model):
    return struct.pack("<QQQQQII16s", number, model, 4, 5, 0, 6, 7, bytes(range(16)))


put("snapshot", "empty", state())
put("snapshot", "one", state(MODEL))
put("snapshot", "two", state(MODEL, {**MODEL, "name": "b", "pinned": False, "devices": [device("x"), device("y"), device("x")]}))
put("snapshot", "ranks", state({**MODEL, "ranks": True, "pattern": "r{rank}"}))
put("snapshot", "cut", state(MODEL)[:-9])
put("snapshot", "no-models", b"\0" + pack({"last_generation": 7}))
put("snapshot", "models-wrong", state(models=5))
for field in MODEL:
    put("snapshot", "without-" + field, state({k: v for k, v in MODEL.items() if k != field}))
put("snapshot", "priority-large", state({**MODEL, "priority": 2**40}))
put("snapshot", "nobody", state({**MODEL, "uid": 2**32 - 1}))
put("snapshot", "groups-many", state({**MODEL, "groups": [1] * 129}))
put("snapshot", "devices-many", state({**MODEL, "devices": [device("d%d" % i) for i in range(65)]}))
put("snapshot", "devices-none", state({**MODEL, "devices": []}))
put("snapshot", "source-nul", state({**MODEL, "source": "\0/m/a"}))
put("snapshot", "name-empty", state({**MODEL, "name": ""}))
put("snapshot", "names", state(MODEL, names=[NAME, {**NAME, "model": 4, "name": "b"}], leases=lease(9, 3) + lease(10, 4)))
put("snapshot", "leases-cut", b"\2" + lease(9, 3) + lease(10, 4)[:-1])
put("snapshot", "name-long", state(names=[{**NAME, "name": "n" * 1025}]))
for field in NAME:
    put("snapshot", "name-without-" + field, state(names=[{k: v for k, v in NAME.items() if k != field}]))

# Their present form: one row for each name on each device.

ROW = {**FACTS, "device": "6c3b2f0e-0000-0000-0000-000000000001", "loadable": True, "priority": 100}
ROW |= {"keep_alive_ns": 0, "drain_timeout_ns": 10**9, "pinned": True, "owner": 1000, "charged": 1001}
ROW |= {"rank": 0, "ranks": 0, "models": [4, 3]}


def rows(*rows, leases=b"", **wrong):
    return bytes([len(leases) // 64]) + leases + pack({"last_generation": 7, "rows": list(rows), **wrong})


put("snapshot", "rows-none", rows())
put("snapshot", "rows-two", rows(ROW, {**ROW, "name": "b", "models": []}, leases=lease(9, 3) + lease(10, 4)))
put("snapshot", "rows-ranks", rows({**ROW, "ranks": 2, "pattern": "r{rank}"}, {**ROW, "ranks": 2, "rank": 1}))
put("snapshot", "rows-stored", rows({**ROW, "source": "", "device": "", "loadable": False}))
put("snapshot", "rows-loadable-from-nothing", rows({**ROW, "source": ""}))
put("snapshot", "rows-models-many", rows({**ROW, "models": [1, 2, 3]}))
put("snapshot", "rows-ranks-many", rows({**ROW, "ranks": 65}))
put("snapshot", "rows-wrong", rows(rows=5))
for field in ROW:
    put("snapshot", "rows-without-" + field, rows({k: v for k, v in ROW.items() if k != field}))

# ---- commit records: the manifest's size, the manifest, the details; the target appends the checksum ----

def segment(size, pages=0, small_bytes=0):
    return {"size": size, "small_bytes": small_bytes, "pages": pages}


DETAILS = {**FACTS, "id": 5, "device": "6c3b", "identity": bytes(16), "has_identity": True, "digest": bytes(16)}
DETAILS |= {"bytes": 28, "tensors": 2, "load_ns": 10**6, "charged": 4096, "segments": [segment(64)]}


def record(table, **wrong):
    return struct.pack("<H", len(table)) + table + pack({**DETAILS, **wrong})


put("commit_record", "two-tensors", record(manifest(**GOOD)))
put("commit_record", "empty", record(manifest([], [], b"", [], []), tensors=0, segments=[], has_identity=False))
put("commit_record", "cut", record(manifest(**GOOD))[:-20])
put("commit_record", "another-number", record(manifest(**GOOD), generation=2))
put("commit_record", "another-digest", record(manifest(**GOOD), digest=b"\1" * 16))
put("commit_record", "segment-differs", record(manifest(**GOOD), segments=[segment(65)]))
put("commit_record", "segment-of-nothing", record(manifest(**GOOD), segments=[segment(0)]))
put("commit_record", "segments-wrap", record(manifest(**GOOD), segments=[segment(2**64 - 1)] * 2))
put("commit_record", "pages-unknown", record(manifest(**GOOD), segments=[segment(64, 99)]))
put("commit_record", "small-bytes-more", record(manifest(**GOOD), segments=[segment(64, 1, 65)]))
put("commit_record", "charged-too-little", record(manifest(**GOOD), charged=63))
put("commit_record", "name-long", record(manifest(**GOOD), name="n" * 1025))
put("commit_record", "device-long", record(manifest(**GOOD), device="d" * 64))
put("commit_record", "identity-short", record(manifest(**GOOD), identity=b"abc"))
put("commit_record", "manifest-huge", record(manifest(**GOOD, size=2**64 - 8)))
for field in DETAILS:
    rest = pack({k: v for k, v in DETAILS.items() if k != field})
    put("commit_record", "without-" + field, struct.pack("<H", 136) + manifest([], [], b"", [], []) + rest)

# ---- tables of published models: a valid one, and each field invalid ----


def published(storages, tensors, attributes, numbers, strings, **wrong):
    h = {"version": 1, "header_size": 120, "storages_off": 120, "n_storages": len(storages)}
    h["tensors_off"] = 120 + 24 * len(storages)
    h["attributes_off"] = h["tensors_off"] + 72 * len(tensors)
    h["numbers_off"] = h["attributes_off"] + 24 * len(attributes)
    h["strings_off"] = h["numbers_off"] + 8 * len(numbers)
    h["size"] = h["strings_off"] + len(strings)
    h.update(n_tensors=len(tensors), n_attributes=len(attributes), n_numbers=len(numbers), strings_len=len(strings))
    h.update(storage_size=24, tensor_size=72, attribute_size=24)
    h.update(wrong)
    longs = "size storages_off n_storages tensors_off n_tensors attributes_off n_attributes numbers_off n_numbers"
    longs += " strings_off strings_len"
    return b"".join(
        [b"strmpub1", struct.pack("<II", h["version"], h["header_size"])]
        + [struct.pack("<Q", h[k]) for k in longs.split()]
        + [struct.pack("<IIII", h["storage_size"], h["tensor_size"], h["attribute_size"], 0)]
        + [struct.pack("<QQII", *s, 0) for s in storages]
        + [struct.pack("<QQIIQIIQQIIII", *t, 0) for t in tensors]
        + [struct.pack("<QQII", *a) for a in attributes]
        + [struct.pack("<Q", n) for n in numbers]
        + [strings]
    )


# offset, bytes, segment; then name, dtype (offsets, lengths), numbers, rank, item, storage, offset, kind, flags, alias
STORAGES = [(0, 480, 0), (512, 0, 0), (0, 256, 1)]
TENSORS = [
    (0, 2, 1, 3, 0, 2, 4, 0, 0, 1, 0, 7),
    (6, 2, 3, 3, 4, 2, 4, 0, 0, 1, 0, 7),
    (10, 2, 1, 3, 8, 1, 4, 1, 0, 3, 1, 0),
    (12, 2, 1, 3, 10, 0, 1, 2, 16, 2, 2, 0),
]
TABLE = {
    "storages": STORAGES,
    "tensors": TENSORS,
    "attributes": [(14, 20, 5, 1)],
    "numbers": [10, 12, 12, 1, 12, 10, 1, 12, 0, 1],
    "strings": b"a\0f32\0b.T\0c\0d\0scale\0x\0",
}


def wrong_tensor(seed, **fields):
    names = "name dtype name_len dtype_len numbers rank item storage offset kind flags alias".split()
    values = [fields.get(n, v) for n, v in zip(names, TENSORS[1])]
    put("published_table", "tensor-" + seed, published(**{**TABLE, "tensors": [TENSORS[0], tuple(values)]}))


put("published_table", "four-tensors", published(**TABLE))
put("published_table", "empty", published([], [], [], [], b""))
put("published_table", "cut", published(**TABLE)[:-1])
put("published_table", "wrong-version", published(**TABLE, version=2))
put("published_table", "larger-items", published([], [], [], [], b"", tensor_size=80))
for field in "size storages_off n_storages tensors_off n_tensors attributes_off n_attributes numbers_off".split():
    put("published_table", "large-" + field, published(**TABLE, **{field: 0xFFFFFFF8}))
    put("published_table", "huge-" + field, published(**TABLE, **{field: 2**64 - 8}))
put("published_table", "storage-overlaps", published(**{**TABLE, "storages": [STORAGES[0], (256, 1, 0), STORAGES[2]]}))
put("published_table", "storage-on-table", published(**{**TABLE, "storages": [STORAGES[0], (0, 1, 2), STORAGES[2]]}))
put("published_table", "storage-outside", published(**{**TABLE, "storages": [STORAGES[0], (8192, 1, 0), STORAGES[2]]}))
put("published_table", "storage-unaligned", published(**{**TABLE, "storages": [STORAGES[0], (520, 1, 0), STORAGES[2]]}))
put("published_table", "extent-overflows", published(**{**TABLE, "numbers": [10, 12, 2**63, 1, 12, 10, 1, 12, 0, 1]}))
wrong_tensor("not-an-alias", alias=0)
wrong_tensor("other-alias", alias=8)
wrong_tensor("same-name", name=0, name_len=1)
wrong_tensor("name-outside", name=1000)
wrong_tensor("item-zero", item=0)
wrong_tensor("storage-missing", storage=3)
wrong_tensor("outside", offset=484)
wrong_tensor("unaligned", offset=2)
wrong_tensor("rank", rank=65)
wrong_tensor("numbers-outside", numbers=9)

# ---- the disk cache: a record, whose digests the target computes, and a source ----


def disk_record(sums=3, size=1000, header=100, texts=(b"s3://b/m.safetensors", b'"e"', b"")):
    head = b"strmdsk1" + struct.pack("<Q", 0) + b"i" * 32 + b"p" * 32 + struct.pack("<4Q", size, header, 7, sums)
    head += b"h" * 16 + b"s" * 16 + b"".join(t + b"\0" for t in texts)
    return struct.pack("<H", sums) + head + bytes(range(16)) * sums


put("disk_record", "file", disk_record())
put("disk_record", "text", disk_record(0, 100, 100))
put("disk_record", "header-beyond-file", disk_record(header=1001))
put("disk_record", "two-texts", disk_record(texts=(b"a", b"b")))
put("disk_record", "four-texts", disk_record(texts=(b"a", b"b", b"c", b"d")))
put("disk_record", "long-text", disk_record(texts=(b"x" * 4095, b"", b"")))


def disk_source(*members, n=None):
    head = b"strmsrc1" + b"i" * 32 + struct.pack("<Q", len(members) if n is None else n)
    return head + b"".join(b"m" * 32 + struct.pack("<2I", f, d) + url + b"\0" + p + b"\0" for f, d, url, p in members)


FILE = (0, 7, b"https://s/b/f.safetensors", b"s3://b/f.safetensors")
put("disk_source", "file", disk_source(FILE))
put("disk_source", "indexed", disk_source((1, 7, b"https://s/b/i.json", b"s3://b/i.json"), FILE))
put("disk_source", "empty", disk_source())
put("disk_source", "fewer", disk_source(FILE, n=2))
put("disk_source", "flags", disk_source((2, 0, b"u", b"p")))
put("disk_source", "folder-beyond-path", disk_source((0, 9, b"u", b"p")))
