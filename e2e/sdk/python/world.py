"""What the checks stand on: the world that the Go test describes, how a check reports, and how the provider is watched."""

import functools
import itertools
import json
import sys
import threading
import time
import traceback
import urllib.request

import openai

WORLD = json.loads(sys.argv[1])

# Long enough for a loaded machine; nothing here waits for it to run out.
TIMEOUT = 60.0

_print = threading.Lock()
_checks = []


def say(**line):
    """Print one line for the Go test."""
    with _print:
        print(json.dumps(line), flush=True)


def check(name):
    """Enter a check: a function that raises if what it looks at is wrong, and may return a text worth reading."""

    def enter(f):
        _checks.append((name, f))
        return f

    return enter


def run(name, f):
    try:
        detail = f()
        say(name=name, ok=True, detail=str(detail or ""))
    except Exception:
        say(name=name, ok=False, detail=traceback.format_exc())


def run_all():
    for name, f in _checks:
        run(name, f)


_failed = itertools.count()


def failing():
    """Return a model for a request that fails on purpose: one that fails too often is left alone for a while."""
    return f"failing-{next(_failed)}"


@functools.cache
def client(key=None, base_url=None, **options):
    """The official client as its users make it: a base URL and a key."""
    return openai.OpenAI(base_url=base_url or WORLD["base_url"], api_key=key or WORLD["key"], timeout=TIMEOUT, **options)


def same(got, want, what=""):
    if got != want:
        raise AssertionError(f"{what}: {got!r}, not {want!r}")


def holds(condition, what):
    if not condition:
        raise AssertionError(what)


def raised(kind, f):
    """Return the exception of exactly this class that f must raise."""
    try:
        got = f()
    except openai.OpenAIError as e:
        if type(e) is not kind:
            raise AssertionError(f"{type(e).__name__}, not {kind.__name__}: {e}") from e
        return e
    raise AssertionError(f"no error, but {got!r}")


def control(method, url, body=None):
    """Talk to the simulator's or the Edge's own paths, beside the SDK."""
    data = json.dumps(body).encode() if body is not None else None
    req = urllib.request.Request(url, data=data, method=method)
    with urllib.request.urlopen(req, timeout=TIMEOUT) as res:
        return res.read().decode()


def seen(marker, sim=None):
    """The requests that reached the provider with the marker in their body, oldest first."""
    all_requests = json.loads(control("GET", (sim or WORLD["sim"]) + "/sim/requests"))
    return [r for r in reversed(all_requests) if marker in r["body"]]


def edge_requests(metrics=None):
    """How many requests for operations have ended at the Edge, or were refused there."""
    return metric("iop_requests_total", metrics) + metric("iop_requests_refused_total", metrics)


def refused_so_far():
    """How many requests the Edge has refused before they became runs."""
    return metric("iop_requests_refused_total")


def metric(name, metrics=None):
    """The sum of the samples of an Edge's metric."""
    total = 0.0
    for line in control("GET", metrics or WORLD["metrics"]).splitlines():
        if line.startswith(name + "{"):
            total += float(line.rsplit(" ", 1)[1])
    return int(total)


def eventually(what, f):
    """Wait for what other processes bring about; return f's first true answer."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        got = f()
        if got:
            return got
        if time.monotonic() > deadline:
            raise AssertionError(f"never: {what}")
        time.sleep(0.02)


def moment(text):
    """Seconds since the epoch of a time as Go writes it."""
    from datetime import datetime

    head, _, rest = text.partition(".")
    digits = ""
    while rest and rest[0].isdigit():
        digits, rest = digits + rest[0], rest[1:]
    base = datetime.fromisoformat(head + (rest or text[len(head):]).replace("Z", "+00:00"))
    return base.timestamp() + (float("0." + digits) if digits else 0.0)


def user(text):
    return [{"role": "user", "content": text}]
