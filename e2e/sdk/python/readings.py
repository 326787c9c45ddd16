"""Reads JSON bodies as providers' programs do, and says what each reader makes of the members that decide something.

In, one line each: the body in base64. Out, one line each: {reader: reading}; a reader that refuses the body is left out.
The first line of the input is {"steering": [...], "counts": [...], "lengths": [...]}.
"""

import base64
import json
import sys
import unicodedata
from typing import Any, Optional

import jiter
import orjson
import pydantic
import pydantic_core

tables = json.loads(sys.stdin.readline())
most = 2.0**40


class StreamOptions(pydantic.BaseModel):
    include_usage: Optional[bool] = False


class Metadata(pydantic.BaseModel):
    session_id: Optional[Any] = None


class Options(pydantic.BaseModel):
    num_predict: Optional[int] = None


fields = {name: (Optional[int], None) for name in tables["counts"] + tables["lengths"]}
fields |= {name: (Optional[Any], None) for name in ("messages", "prompt", "input")}
fields |= {name: (Optional[str], None) for name in ("user", "session_id", "prompt_cache_key")}
Request = pydantic.create_model(
    "Request", model=(str, ...), stream=(Optional[bool], False), stream_options=(Optional[StreamOptions], None),
    metadata=(Optional[Metadata], None), options=(Optional[Options], None), **fields)


def pairs(norm, first):
    """A reader of objects that takes names for the same which norm makes the same, and the first or the last of them."""
    def hook(items):
        read = {}
        for key, value in items:
            key = norm(key)
            if not first or key not in read:
                read[key] = value
        return read
    return hook


def same(key):
    return key


def fold(key):
    return key.casefold()


def dotless(key):
    return unicodedata.normalize("NFKD", key).replace("ı", "i").encode("ascii", "ignore").decode().lower()


known = {n.replace("_", ""): n for n in tables["counts"] + tables["lengths"] + tables["steering"] + ["model", "stream", "stream_options"]}


def bare(key):
    return known.get(key.lower().replace("_", "").replace("-", ""), key)


def drop(key):
    return key.encode("utf-8", "ignore").decode()


def c_string(key):
    return key.split("\0")[0]


def text(errors):
    return lambda body: json.loads(body.decode("utf-8", errors))


def hooked(norm, first, errors="strict"):
    return lambda body: json.loads(body.decode("utf-8", errors), object_pairs_hook=pairs(norm, first))


def model_of(body):
    return Request.model_validate(json.loads(body)).model_dump()


readers = {
    "json": json.loads, "json ignore": text("ignore"), "json replace": text("replace"), "orjson": orjson.loads,
    "pydantic": pydantic_core.from_json, "jiter": jiter.from_json, "model": model_of,
    "first": hooked(same, True), "fold": hooked(fold, False), "fold first": hooked(fold, True), "dotless": hooked(dotless, False),
    "bare": hooked(bare, False), "bare first": hooked(bare, True),
    "drop": hooked(drop, False, "ignore"), "c": hooked(c_string, False),
}


def number(v):
    """A number as a reader that coerces takes it. What is none stays as it is, to be seen."""
    if isinstance(v, bool) or isinstance(v, str):
        try:
            v = float(v)
        except ValueError:
            return repr(v)
    if not isinstance(v, (int, float)):
        return repr(v)
    return float(max(min(v, most), -most))


def inside(v, name):
    return v.get(name) if isinstance(v, dict) else None


def reading(d):
    """What a reader makes of a body. Absent and null are the same."""
    r = {name: d.get(name) for name in ("model", "user", "session_id", "prompt_cache_key")}
    r["stream"] = bool(d.get("stream"))
    r["include_usage"] = bool(inside(d.get("stream_options"), "include_usage"))
    session = inside(d.get("metadata"), "session_id")
    r["metadata"] = session if isinstance(session, str) else None
    for name in tables["counts"] + tables["lengths"]:
        r[name] = None if d.get(name) is None else number(d[name])
    length = inside(d.get("options"), "num_predict")
    r["options"] = None if length is None else number(length)
    r["prompts"] = [size(d.get(name)) for name in ("messages", "prompt", "input")]
    return r


def size(v):
    return len(v) if isinstance(v, (str, list, dict)) else repr(v)


def steers(d):
    def stands(key, name):
        return key.startswith(name[:-1]) if name.endswith("*") else key == name
    return sorted(n for n in tables["steering"] for k, v in d.items() if v is not None and v is not False and stands(k, n))


for line in sys.stdin:
    body = base64.b64decode(line)
    out = {}
    for name, read in readers.items():
        try:
            d = read(body)
        except Exception:
            continue
        if not isinstance(d, dict):
            continue
        out[name] = reading(d)
        if name != "model":
            out[name]["steering"] = steers(d)
    print(json.dumps(out, separators=(",", ":")))
