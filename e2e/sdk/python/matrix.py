"""The cases of the client matrix: what each client must get from each kind of provider. A driver says them in its client's words.

The Go test checks what a case says of its session against the records of usage: execution, outcome and tokens.
"""

import base64
import itertools
import json
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from pydantic import BaseModel

from world import WORLD, control, eventually, holds, run, same, say

KINDS = ["openai", "ollama", "anthropic"]


def _png():
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0\xff\0\0")) + chunk(b"IEND", b"")


PNG = base64.b64encode(_png()).decode()
DATA_URL = "data:image/png;base64," + PNG


class Person(BaseModel):
    name: str
    age: int


WEATHER_SCHEMA = {
    "type": "object",
    "required": ["city"],
    "additionalProperties": False,
    "properties": {"city": {"type": "string"}},
}


def seen(marker, kind):
    """The requests among the last few of the provider of this kind with the marker in their body, oldest first."""
    last = json.loads(control("GET", WORLD["sims"][kind] + "/sim/requests?n=150"))
    return [r for r in reversed(last) if marker in r["body"]]


@dataclass
class Got:
    """What a client made of an answer. Numbers are None where the client does not tell them."""

    text: str = ""
    thought: str = ""
    calls: list = field(default_factory=list)  # names of tools
    value: object = None  # of structured output
    input: int | None = None
    output: int | None = None


class Driver:
    """One client. A method that it lacks is a case that its users can't ask for; `lacks` says why."""

    name = ""
    native = ""  # the kind of provider whose protocol is the client's
    lacks = {}  # case: why the client can't do it
    refused = {}  # (kind, case): what the error names: refused by design
    derives = False  # it raises classes of its own, of the SDK's that it stands on

    def call(self, session, model, text, stream=False, **more):
        """Ask, with key=, image=, think=, schema=, odd= (a parameter that the kind of provider can't carry)."""
        raise NotImplementedError

    def tools(self, session, model, text, stream=False):
        """Offer get_weather, answer its call with "sunny", and return the Got of the end."""
        raise NotImplementedError

    def leave(self, session, model, text):
        """Begin a stream, and go after its first piece."""
        raise NotImplementedError

    def error(self, status):
        """The class that an error of this status is raised as; 0 is an error inside a stream."""
        raise NotImplementedError

    def headers(self, session):
        return {"X-Session-Id": session}


_failed = {kind: itertools.count(WORLD["failing_from"]) for kind in KINDS}


def failing(kind):
    """Return a model for a request that fails on purpose: one that fails too often is left alone for a while."""
    return f"{kind}-failing-{next(_failed[kind])}"


def execution(driver, kind):
    return "raw" if driver.native == kind else "normalized"


def books(driver, kind, case, session, *got, runs=None, **more):
    """Say what must be booked on the session."""
    line = {"session": session, "execution": execution(driver, kind), "runs": runs or len(got), "outcome": "completed"}
    if got and all(g.input is not None for g in got):
        line["input"], line["output"] = sum(g.input for g in got), sum(g.output for g in got)
    say(book=line | more)


def case_unary(d, kind, session):
    got = d.call(session, f"{kind}-model", "sim:tokens=5 hello there")
    same(got.text, "hello there t2 t3 t4")
    books(d, kind, "unary", session, got)


def case_stream(d, kind, session):
    got = d.call(session, f"{kind}-model", "sim:tokens=9,text=mix hello there", stream=True)
    holds(got.text.startswith("hello there") and len(got.text) > 20, got.text)
    books(d, kind, "stream", session, got)


def case_limit(d, kind, session):
    got = d.call(session, f"{kind}-model", "sim:tokens=90 hello", limit=7)
    same(got.text, "hello t1 t2 t3 t4 t5 t6")
    books(d, kind, "limit", session, got)


def tools_in(d, kind, session, stream):
    got = d.tools(session, f"{kind}-model", f"{session} asks get_weather", stream)
    same(got.calls, ["get_weather"])
    holds(got.text, "no text after the tool's result")
    requests = seen(session + " asks", kind)
    same(len(requests), 2, "requests")
    holds("sunny" in requests[-1]["body"], requests[-1]["body"])
    books(d, kind, "tools", session, runs=2)


def case_tools(d, kind, session):
    tools_in(d, kind, session, False)


def case_tools_stream(d, kind, session):
    tools_in(d, kind, session, True)


def case_structured(d, kind, session):
    got = d.call(session, f"{kind}-model", "who", schema=Person)
    holds(isinstance(got.value, Person), got.value)
    books(d, kind, "structured", session, got)


def case_structured_tools(d, kind, session):
    value = d.structured_tools(session, f"{kind}-model", Person)
    holds(isinstance(value, Person), value)
    books(d, kind, "structured_tools", session, runs=1)


def case_structured_partial(d, kind, session):
    value = d.structured_partial(session, f"{kind}-model", Person)
    holds(isinstance(value, Person), value)
    books(d, kind, "structured_partial", session, runs=1)


def case_image(d, kind, session):
    got = d.call(session, f"{kind}-model", f"{session} sees", image=DATA_URL)
    holds(got.text.startswith(session + " sees"), got.text)
    holds(PNG in seen(session + " sees", kind)[0]["body"], "the provider got no image")
    books(d, kind, "image", session, got)


def case_reasoning(d, kind, session):
    all_got = []
    for stream in (False, True):
        got = d.call(session, f"{kind}-model", "sim:tokens=3,reasoning=3 hello", stream=stream, think=True)
        same((got.thought, got.text), ("Let me think......", "hello t1 t2"))
        all_got.append(got)
    books(d, kind, "reasoning", session, *all_got)


def case_abort(d, kind, session):
    d.leave(session, f"{kind}-model", f"sim:tokens=100000,itl=20ms {session} leaves")
    eventually("the provider was left", lambda: seen(session + " leaves", kind)[0]["state"] == "cancelled")
    books(d, kind, "abort", session, runs=1, outcome="cancelled")


def is_own(d, e, status):
    want = d.error(status) if isinstance(d.error(status), tuple) else (d.error(status),)
    return type(e) in want or d.derives and isinstance(e, want)


def raised(d, status, f):
    """Return the error that f must raise, of the client's own class for the status."""
    try:
        got = f()
    except Exception as e:
        want = d.error(status)
        if not is_own(d, e, status):
            raise AssertionError(f"{type(e).__module__}.{type(e).__name__}, not {want}: {e}") from e
        return e
    raise AssertionError(f"no error, but {got!r}")


def words(e):
    """All that an error says, with what it was raised from."""
    text = ""
    while e is not None:
        text += f"{e} {getattr(e, 'body', '')} "
        e = e.__cause__
    return text


def case_error_401(d, kind, session):
    e = raised(d, 401, lambda: d.call(session, f"{kind}-model", "hello", key=WORLD["wrong_key"]))
    holds("key" in words(e).lower(), words(e))


def case_error_404(d, kind, session):
    e = raised(d, 404, lambda: d.call(session, "nobody-has", "hello"))
    holds("nobody-has" in words(e), words(e))


def case_error_400(d, kind, session):
    if d.native == kind:
        return "the provider's own business: relayed as it is"
    e = raised(d, 400, lambda: d.call(session, f"{kind}-model", "hello", odd=d.odd[kind]))
    holds(d.odd[kind].replace(":", ".") in words(e), words(e))


def case_error_429(d, kind, session):
    """A key with one request a minute. A provider's own 429 would have all others wait as well."""

    def f():
        return [d.call(session, f"{kind}-model", "hello", key=WORLD["slow_key"]) for _ in range(2)]

    response = getattr(raised(d, 429, f), "response", None)
    if response is not None:
        holds(1 <= int(response.headers["retry-after"]) <= 60, dict(response.headers))


def case_error_overflow(d, kind, session):
    for stream in (False, True):
        e = raised(d, 400, lambda: d.call(session, failing(kind), "sim:overflow hello", stream=stream))
        holds("context" in words(e) or "too long" in words(e), words(e))


def case_error_500(d, kind, session):
    raised(d, 502, lambda: d.call(session, failing(kind), "sim:status=500 hello"))


def broken(knob):
    def case(d, kind, session):
        def f():
            return d.call(session, failing(kind), f"sim:tokens=9,{knob} hello", stream=True)

        if knob.startswith("malformed") and d.native == kind:
            # What is no JSON is relayed as it is: the client raises what it raises of the provider itself.
            try:
                f()
            except Exception as e:
                holds(isinstance(e, ValueError) or is_own(d, e, 0), repr(e))
            else:
                raise AssertionError("no error")
        else:
            holds(str(raised(d, 0, f)), "an error without a word")
        books(d, kind, knob, session, runs=1, outcome="failed")

    return case


CASES = {
    "unary": case_unary,
    "stream": case_stream,
    "limit": case_limit,
    "tools": case_tools,
    "tools_stream": case_tools_stream,
    "structured": case_structured,
    "structured_tools": case_structured_tools,
    "structured_partial": case_structured_partial,
    "image": case_image,
    "reasoning": case_reasoning,
    "abort": case_abort,
    "error_401": case_error_401,
    "error_404": case_error_404,
    "error_400": case_error_400,
    "error_429": case_error_429,
    "error_500": case_error_500,
    "error_overflow": case_error_overflow,
    "broken_died": broken("die=4"),
    "broken_error": broken("error_event_mid=4"),
    "broken_json": broken("malformed=4"),
    "broken_end": broken("midclose=4"),
}


def refusal(d, kind, case, what):
    """The case must be refused, with an error that names what can't be carried."""

    def f(d, kind, session):
        try:
            CASES[case](d, kind, session)
        except AssertionError:
            raise
        except Exception as e:
            holds(is_own(d, e, 400), f"{type(e).__name__}: {e}")
            holds(what in words(e), words(e))
            return f"refused: {what}"
        raise AssertionError(f"it was not refused, though {what} can't be carried")

    return f


def run_matrix(drivers, extra=()):
    """Run all cases of all drivers, a few at a time; extra are further (name, function)."""
    todo = []
    for d in drivers:
        for kind in KINDS:
            for case, f in CASES.items():
                name = f"{d.name}/{kind}/{case}"
                if case in d.lacks or case in ("structured_tools", "structured_partial") and not hasattr(d, case):
                    continue
                if (kind, case) in d.refused:
                    f = refusal(d, kind, case, d.refused[kind, case])
                todo.append((name, lambda d=d, kind=kind, f=f, name=name: f(d, kind, WORLD["script"] + "/" + name)))
    todo += extra
    if WORLD.get("only"):
        todo = [one for one in todo if WORLD["only"] in one[0]]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda one: run(*one), todo))
