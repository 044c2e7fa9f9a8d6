#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds of tests/fuzz/corpus/{safetensors,index}. Run by hand when a rule changes."""

import json
import os
import struct

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus")


def write(folder, name, data):
    os.makedirs(os.path.join(HERE, folder), exist_ok=True)
    with open(os.path.join(HERE, folder, name), "wb") as f:
        f.write(data)


def header(name, text, data=0):
    text = text.replace("'", '"').encode("utf-8", "surrogateescape")
    write("safetensors", name, struct.pack("<Q", len(text)) + text + bytes(data))


def tensor(begin, end, dtype="U8", shape=None):
    shape = [end - begin] if shape is None else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def good(name, entries, data):
    header(name, json.dumps(entries, separators=(",", ":"), ensure_ascii=False), data)


BYTE = "'dtype':'U8','shape':[1],'data_offsets':[0,1]"

good("good-empty", {}, 0)
good("good-metadata", {"__metadata__": {"format": "pt", "é": "\n"}, "a": tensor(0, 1)}, 1)
good("good-null-metadata", {"__metadata__": None, "a": tensor(0, 1)}, 1)
good("good-mixed", {
    "model.embed.weight": tensor(0, 64, "BF16", [4, 8]), "model.norm": tensor(64, 80, "F32", [4]),
    "scalar": tensor(80, 88, "F64", []), "empty": tensor(88, 88, "I64", [0, 3]),
    "flags": tensor(88, 91, "BOOL"), "packed": tensor(91, 94, "F6_E2M3", [4]), "half": tensor(94, 96, "F4", [4]),
}, 96)
good("good-unordered", {"c": tensor(4, 8), "a": tensor(0, 4), "b": tensor(4, 4)}, 8)
good("good-misaligned", {"a": tensor(0, 1), "b": tensor(1, 9, "F32", [2]), "c": tensor(9, 10)}, 10)
good("good-overflow-after-zero", {"a": tensor(0, 0, "U8", [0, 1 << 40, 1 << 40])}, 0)
header("good-spaces", " \t\r\n{ 'a' : { 'dtype' : 'U8' , 'shape' : [ 1 ] , 'data_offsets' : [ 0 , 1 ] } }\n  ", 1)
header("good-escapes", "{'\\ud83d\\ude00\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9':{" + BYTE + "}}", 1)
header("good-extra", "{'a':{" + BYTE + ",'x':[1.5e-3,-0,null,true,false,{'y':{'y':'\\u0000'}},[[]]]}}", 1)

header("bad-not-object", "[]")
header("bad-trailing", "{}{}")
header("bad-comma", "{'a':{" + BYTE + "},}", 1)
header("bad-utf8", "{'\udcff':{" + BYTE + "}}", 1)
header("bad-surrogate", "{'\\ud83d':{" + BYTE + "}}", 1)
header("bad-duplicate", "{'a':{" + BYTE + "},'\\u0061':{" + BYTE + "}}", 1)
header("bad-duplicate-field", "{'a':{" + BYTE + ",'dtype':'U8'}}", 1)
header("bad-duplicate-many", "{'a':{'x':{" + ",".join("'%d':0" % (i % 20) for i in range(21)) + "}}}")
header("bad-nul", "{'a\\u0000':{" + BYTE + "}}", 1)
header("bad-metadata", "{'__metadata__':{'k':1}}")
header("bad-two-metadata", "{'__metadata__':{},'__metadata__':{}}")
header("bad-dtype", "{'a':{'dtype':'F33'}}")
header("bad-missing", "{'a':{'dtype':'U8','shape':[]}}")
header("bad-shape-overflow", "{'a':{'dtype':'U8','shape':[1099511627776,1099511627776,0],'data_offsets':[0,0]}}")
header("bad-shape-fraction", "{'a':{'dtype':'U8','shape':[1.0],'data_offsets':[0,1]}}", 1)
header("bad-offsets", "{'a':{'dtype':'U8','shape':[1],'data_offsets':[1,0]}}", 1)
header("bad-size", "{'a':{'dtype':'F32','shape':[2],'data_offsets':[0,7]}}", 7)
header("bad-bits", "{'a':{'dtype':'F4','shape':[3],'data_offsets':[0,2]}}", 2)
good("bad-hole", {"a": tensor(0, 1), "b": tensor(2, 3)}, 3)
good("bad-overlap", {"a": tensor(0, 2), "b": tensor(1, 3)}, 3)
good("bad-file-size", {"a": tensor(0, 1)}, 2)
header("bad-deep", "{'a':{'x':" + 200 * "[" + 200 * "]" + "}}")
write("safetensors", "bad-prefix", struct.pack("<Q", 1 << 40) + b"{}")


def index(name, text):
    write("index", name, text.replace("'", '"').encode("utf-8", "surrogateescape"))


index("good-small", "{'metadata':{'total_size':12},'weight_map':{'a':'1.safetensors','b':'2.safetensors'}}")
index("good-empty", "{'weight_map':{}}")
index("good-unordered", "{'weight_map':{'c':'z','b':'y','a':'z','\\u00e9':'x'}}\n")
index("good-many", "{'weight_map':{" + ",".join("'layer.%d':'shard-%d'" % (i, i % 9) for i in range(40)) + "}}")
index("bad-no-map", "{'metadata':{}}")
index("bad-duplicate", "{'weight_map':{'a':'f','\\u0061':'f'}}")
index("bad-two-maps", "{'weight_map':{},'weight_map':{}}")
index("bad-folder", "{'weight_map':{'a':'../f'}}")
index("bad-dot", "{'weight_map':{'a':'.'}}")
index("bad-number", "{'weight_map':{'a':1}}")
index("bad-nul", "{'weight_map':{'a':'f\\u0000'}}")
index("bad-utf8", "{'weight_map':{'\udcff':'f'}}")
