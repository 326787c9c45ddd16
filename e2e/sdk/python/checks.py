"""The official openai package against the real stack. Run by the Go test; see world.py for how it reports."""

import asyncio
import base64
import io
import json
import struct
import threading
import time
import wave
import zlib

import openai
from pydantic import BaseModel

from world import TIMEOUT, WORLD, check, client, control, edge_requests, eventually, failing, holds, moment, raised, run_all, same, say, seen, user

CHAT, REASON, EMBED, AUDIO, IMAGE = "sim-small", "sim-reason", "sim-embed", "sim-audio", "sim-image"

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "required": ["city", "unit"],
            "additionalProperties": False,
            "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "kelvin"]}},
        },
        "strict": True,
    },
}


class Person(BaseModel):
    name: str
    age: int


# ---- chat


@check("chat/unary")
def _():
    a = client().chat.completions.create(model=CHAT, messages=user("hello there"), user="sim:tokens=5")
    same(a.choices[0].message.content, "hello there t2 t3 t4")
    same(a.choices[0].finish_reason, "stop")
    same(a.usage.completion_tokens, 5)
    holds(a._request_id and a._request_id.startswith("req_"), f"_request_id {a._request_id!r}")


@check("chat/stream")
def _():
    want = client().chat.completions.create(model=CHAT, messages=user("hi"), user="sim:tokens=40,text=mix").choices[0].message.content
    text, finish, ids = "", [], set()
    with client().chat.completions.create(model=CHAT, messages=user("hi"), user="sim:tokens=40,text=mix,itl=5ms", stream=True) as s:
        for chunk in s:
            ids.add(chunk.id)
            text += chunk.choices[0].delta.content or ""
            if chunk.choices[0].finish_reason:
                finish.append(chunk.choices[0].finish_reason)
    same(text, want)
    same(finish, ["stop"])
    same(len(ids), 1, "ids")


@check("chat/stream_of_two")
def _():
    text = ["", ""]
    for chunk in client().chat.completions.create(model=CHAT, messages=user("hi"), n=2, user="sim:tokens=6,text=emoji", stream=True):
        for c in chunk.choices:
            text[c.index] += c.delta.content or ""
    same(text[0], text[1])
    holds(text[0].startswith("hi"), text)


@check("chat/stream_in_pieces")
def _():
    """A provider that sends a few bytes at a time, with CRLF and comments, reads the same."""
    want = client().chat.completions.create(model=CHAT, messages=user("hi"), user="sim:tokens=12,text=cjk").choices[0].message.content
    for knobs in ("split=3", "crlf", "comments", "nospace", "done=none", "done=unterminated"):
        s = client().chat.completions.create(model=CHAT, messages=user("hi"), user="sim:tokens=12,text=cjk," + knobs, stream=True)
        same("".join(c.choices[0].delta.content or "" for c in s), want, knobs)


@check("chat/stream_helper")
def _():
    with client().chat.completions.stream(model=CHAT, messages=user("hello"), user="sim:tokens=4") as s:
        kinds = [e.type for e in s]
        final = s.get_final_completion()
    holds("content.delta" in kinds and "content.done" in kinds, kinds)
    same(final.choices[0].message.content, "hello t1 t2 t3")


@check("chat/async_stream")
def _():
    async def main():
        async with openai.AsyncOpenAI(base_url=WORLD["base_url"], api_key=WORLD["key"], timeout=TIMEOUT) as c:
            s = await c.chat.completions.create(model=CHAT, messages=user("hello"), user="sim:tokens=4", stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in s])

    same(asyncio.run(main()), "hello t1 t2 t3")


@check("chat/reasoning")
def _():
    a = client().chat.completions.create(model=REASON, messages=user("why"), user="sim:tokens=3")
    same(a.choices[0].message.model_extra["reasoning_content"], "Let me think.........")
    thought, text = "", ""
    for chunk in client().chat.completions.create(model=REASON, messages=user("why"), user="sim:tokens=3", stream=True):
        delta = chunk.choices[0].delta
        thought += (delta.model_extra or {}).get("reasoning_content", "")
        text += delta.content or ""
    same(thought, a.choices[0].message.model_extra["reasoning_content"])
    same(text, a.choices[0].message.content)


@check("chat/usage_asked")
def _():
    chunks = list(client().chat.completions.create(model=CHAT, messages=user("hi"), user="sim:tokens=7", stream=True, stream_options={"include_usage": True}))
    same([len(c.choices) for c in chunks[-2:]], [1, 0], "choices of the last chunks")
    same(chunks[-1].usage.completion_tokens, 7)
    same([c.usage for c in chunks[:-1]], [None] * (len(chunks) - 1))


@check("chat/usage_not_asked")
def _():
    for knobs in ("", ",usage=refuse", ",usage=never"):
        marker = "unasked-python" + knobs
        chunks = list(client().chat.completions.create(model=CHAT, messages=user(marker), user="sim:tokens=7" + knobs, stream=True))
        same([len(c.choices) for c in chunks], [1] * len(chunks), "choices" + knobs)
        same([c.usage for c in chunks], [None] * len(chunks), "usage" + knobs)
    holds('"include_usage":true' in seen("unasked-python")[0]["body"].replace(" ", ""), "the provider was not asked for the usage")


@check("chat/tools")
def _():
    c = client()
    a = c.chat.completions.create(model=CHAT, messages=user("call get_weather"), tools=[WEATHER])
    same(a.choices[0].finish_reason, "tool_calls")
    call = a.choices[0].message.tool_calls[0]
    same(call.function.name, "get_weather")
    same(json.loads(call.function.arguments)["unit"], "celsius")
    follow = user("call get_weather") + [a.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    b = c.chat.completions.create(model=CHAT, messages=follow, tools=[WEATHER])
    holds(b.choices[0].message.content, "no answer after the tool's")


@check("chat/tools_stream")
def _():
    args = {"model": CHAT, "messages": user("call get_weather"), "tools": [WEATHER], "user": "sim:tools=2"}
    want = client().chat.completions.create(**args).choices[0].message.tool_calls
    calls, finish = {}, None
    for chunk in client().chat.completions.create(stream=True, **args):
        choice = chunk.choices[0]
        finish = choice.finish_reason or finish
        for d in choice.delta.tool_calls or []:
            call = calls.setdefault(d.index, {"id": "", "name": "", "arguments": "", "pieces": 0})
            call["id"] += d.id or ""
            call["name"] += d.function.name or ""
            call["arguments"] += d.function.arguments or ""
            call["pieces"] += 1
    same(finish, "tool_calls")
    same(sorted(calls), [0, 1])
    for i, call in calls.items():
        same((call["name"], call["arguments"]), (want[i].function.name, want[i].function.arguments))
        holds(call["id"] and call["pieces"] > 2, f"call {i}: {call}")


@check("chat/structured")
def _():
    a = client().chat.completions.parse(model=CHAT, messages=user("who"), response_format=Person)
    holds(isinstance(a.choices[0].message.parsed, Person), a)
    with client().chat.completions.stream(model=CHAT, messages=user("who"), response_format=Person) as s:
        same(s.get_final_completion().choices[0].message.parsed, a.choices[0].message.parsed)


# ---- the other endpoints


@check("completions")
def _():
    a = client().completions.create(model=CHAT, prompt=["a", "b c"], user="sim:tokens=4")
    same([len(c.text.split()) for c in a.choices], [4, 4], "tokens")
    text = ["", ""]
    for chunk in client().completions.create(model=CHAT, prompt=["a", "b c"], user="sim:tokens=4", stream=True):
        for c in chunk.choices:
            text[c.index] += c.text
    same(text, [c.text for c in a.choices], "streamed")


@check("embeddings")
def _():
    c = client()
    by_default = c.embeddings.create(model=EMBED, input=["a", "b", "emb-python"], dimensions=16)
    holds('"encoding_format":"base64"' in seen("emb-python")[0]["body"].replace(" ", ""), "the SDK's default is not base64")
    floats = c.embeddings.create(model=EMBED, input=["a", "b", "emb-python"], dimensions=16, encoding_format="float")
    for one, two in zip(by_default.data, floats.data, strict=True):
        same(len(one.embedding), 16)
        holds(max(abs(x - y) for x, y in zip(one.embedding, two.embedding, strict=True)) < 1e-6, "base64 and float differ")
    raw = c.embeddings.create(model=EMBED, input="a", dimensions=16, encoding_format="base64").data[0].embedding
    holds(isinstance(raw, str) and len(base64.b64decode(raw)) == 64, f"base64 asked for: {raw!r}")


@check("models")
def _():
    c = client()
    ids = [m.id for m in c.models.list()]
    holds(set(WORLD["models"]) == set(ids), ids)
    for name in WORLD["models"]:
        same(c.models.retrieve(name).id, name)
    e = raised(openai.NotFoundError, lambda: c.models.retrieve("nobody/at:all"))
    same(e.code, "model_not_found")


@check("responses/unary")
def _():
    a = client().responses.create(model=REASON, input="hello there", instructions="be brief", user="sim:tokens=4")
    same(a.output_text, "hello there t2 t3")
    same((a.status, a.usage.output_tokens), ("completed", 8))
    holds(a._request_id.startswith("req_"), a._request_id)


@check("responses/stream")
def _():
    kinds, text, last = [], "", None
    for e in client().responses.create(model=REASON, input="hello there", user="sim:tokens=4", stream=True):
        same(e.sequence_number, len(kinds))
        kinds.append(e.type)
        if e.type == "response.output_text.delta":
            text += e.delta
        last = e
    same((kinds[0], kinds[-1]), ("response.created", "response.completed"))
    holds("response.reasoning_summary_text.delta" in kinds, kinds)
    same((text, last.response.output_text), ("hello there t2 t3", "hello there t2 t3"))
    kinds = [e.type for e in client().responses.create(model=CHAT, input="hello there", max_output_tokens=2, stream=True)]
    same(kinds[-1], "response.incomplete")


@check("responses/tools")
def _():
    tool = {"type": "function", "name": "get_weather", "parameters": WEATHER["function"]["parameters"], "strict": True}
    a = client().responses.create(model=CHAT, input="use get_weather", tools=[tool])
    arguments = ""
    for e in client().responses.create(model=CHAT, input="use get_weather", tools=[tool], stream=True):
        if e.type == "response.function_call_arguments.delta":
            arguments += e.delta
    same(arguments, a.output[0].arguments)
    same(a.output[0].name, "get_weather")


@check("responses/structured")
def _():
    a = client().responses.parse(model=CHAT, input="who", text_format=Person)
    holds(isinstance(a.output_parsed, Person), a)


@check("moderations")
def _():
    a = client().moderations.create(model=CHAT, input=["fine", "flag this"])
    same([r.flagged for r in a.results], [False, True])


def sound():
    out = io.BytesIO()
    with wave.open(out, "wb") as w:
        w.setnchannels(1)
        w.setsampwidth(2)
        w.setframerate(24000)
        w.writeframes(struct.pack("<h", 1000) * 12000)
    return out.getvalue()


@check("audio/transcription")
def _():
    want = "Heard 24044 bytes of one.wav:"
    a = client().audio.transcriptions.create(model=AUDIO, file=("one.wav", sound(), "audio/wav"))
    holds(a.text.startswith(want), a.text)
    text, last = "", None
    for e in client().audio.transcriptions.create(model=AUDIO, file=("one.wav", sound(), "audio/wav"), stream=True):
        last = e
        text += getattr(e, "delta", "")
    same((text, last.type, last.text), (a.text, "transcript.text.done", a.text))
    plain = client().audio.transcriptions.create(model=AUDIO, file=("one.wav", sound(), "audio/wav"), response_format="text")
    same(plain.strip(), a.text)
    same(client().audio.translations.create(model=AUDIO, file=("one.wav", sound(), "audio/wav")).text, a.text)


@check("audio/speech")
def _():
    whole = client().audio.speech.create(model=AUDIO, voice="alloy", input="say something").content
    with wave.open(io.BytesIO(whole)) as w:
        holds(w.getnframes() > 0, "no sound")
    with client().audio.speech.with_streaming_response.create(model=AUDIO, voice="alloy", input="say something") as res:
        same(b"".join(res.iter_bytes()), whole)


def look_at_png(data):
    """Check a PNG's signature and each of its chunks."""
    same(data[:8], b"\x89PNG\r\n\x1a\n")
    at, kinds = 8, []
    while at < len(data):
        (n,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + n]
        same(struct.unpack(">I", data[at + 8 + n : at + 12 + n])[0], zlib.crc32(kind + body), "sum of a chunk")
        kinds.append(kind)
        at += 12 + n
    same(kinds[-1], b"IEND")


@check("images/generate")
def _():
    a = client().images.generate(model=IMAGE, prompt="a cat", n=2)
    for image in a.data:
        look_at_png(base64.b64decode(image.b64_json))
    kinds = []
    for e in client().images.generate(model=IMAGE, prompt="a cat", stream=True, partial_images=2):
        kinds.append(e.type)
        look_at_png(base64.b64decode(e.b64_json))
    same(kinds, ["image_generation.partial_image"] * 2 + ["image_generation.completed"])


@check("images/edit")
def _():
    png = base64.b64decode(client().images.generate(model=IMAGE, prompt="a cat").data[0].b64_json)
    a = client().images.edit(model=IMAGE, prompt="a dog", image=[("a.png", png, "image/png"), ("b.png", png, "image/png")])
    look_at_png(base64.b64decode(a.data[0].b64_json))


# ---- errors: each status in the SDK's own class, and tried as often as it should be


def refused(kind, status, code, f, *, metrics=None, attempts=1):
    """Check an error that the Edge itself answers with: its class, its fields, and how often the SDK asked."""
    before = edge_requests(metrics)
    e = raised(kind, f)
    same((e.status_code, e.code), (status, code), str(e))
    holds(e.request_id and e.request_id.startswith("req_"), f"request_id {e.request_id!r}")
    holds(isinstance(e.body, dict) and e.body["message"] and e.type, f"body {e.body!r}")
    eventually(f"{attempts} attempts, not {edge_requests(metrics) - before}", lambda: edge_requests(metrics) - before >= attempts)
    same(edge_requests(metrics) - before, attempts, "attempts")
    same(e.request.headers["x-stainless-retry-count"], str(attempts - 1))
    return e


def ask(c=None, model=CHAT, text="hello", knobs="tokens=3", **more):
    return (c or client()).chat.completions.create(model=model, messages=user(text), user="sim:" + knobs, **more)


@check("errors/401")
def _():
    for name in ("wrong", "revoked", "expired", "malformed"):
        e = refused(openai.AuthenticationError, 401, "invalid_api_key", lambda key=WORLD["keys"][name]: ask(client(key=key)))
        holds(WORLD["keys"][name] not in str(e), "the error repeats the key")
        same(e.response.headers["www-authenticate"], "Bearer")
        same(e.response.headers["x-should-retry"], "false")


@check("errors/403")
def _():
    e = refused(openai.PermissionDeniedError, 403, "model_not_allowed", lambda: ask(client(key=WORLD["keys"]["narrow"])))
    same(e.param, "model")
    ask_allowed = client(key=WORLD["keys"]["narrow"]).embeddings.create(model=EMBED, input="a")
    holds(ask_allowed.data, "the key's own model")


@check("errors/404")
def _():
    e = refused(openai.NotFoundError, 404, "model_not_found", lambda: ask(model="nobody/at:all"))
    same(e.param, "model")
    e = raised(openai.NotFoundError, lambda: client().files.list())
    same(e.code, "unknown_path")


@check("errors/400")
def _():
    e = refused(openai.BadRequestError, 400, "invalid_request_error", lambda: ask(extra_body={"stream": "yes"}))
    same(e.param, "stream")


@check("errors/413")
def _():
    tight = WORLD["tight"]
    c = client(base_url=tight["base_url"], key=tight["key"])
    e = refused(openai.APIStatusError, 413, "request_too_large", lambda: ask(c, text="x" * 300_000), metrics=tight["metrics"])
    holds("256 KiB" in str(e), f"the limit is not named: {e}")


@check("errors/415")
def _():
    refused(openai.APIStatusError, 415, "unsupported_media_type", lambda: ask(extra_headers={"Content-Encoding": "gzip"}))


# What the provider answers, what the client gets, and how often the SDK asks.
PROVIDER = [
    (400, 400, openai.BadRequestError, 1),
    (401, 502, openai.InternalServerError, 1),
    (403, 502, openai.InternalServerError, 1),
    (404, 404, openai.NotFoundError, 1),
    (408, 408, openai.APIStatusError, 3),
    (409, 409, openai.ConflictError, 3),
    (413, 413, openai.APIStatusError, 1),
    (422, 422, openai.UnprocessableEntityError, 1),
    (429, 429, openai.RateLimitError, 3),
    (500, 502, openai.InternalServerError, 3),
    (502, 502, openai.InternalServerError, 3),
    (503, 503, openai.InternalServerError, 3),
    (504, 502, openai.InternalServerError, 3),
    (529, 503, openai.InternalServerError, 3),
]


def from_provider(status, told, kind, attempts, shape):
    marker = f"provider-python-{status}-{shape}"
    e = raised(kind, lambda: ask(model=failing(), text=marker, knobs=f"status={status},error_shape={shape}"))
    same(e.status_code, told)
    holds(isinstance(e.body, dict) and e.body["message"] and e.type, f"body {e.body!r}")
    holds(e.request_id and e.request_id.startswith("req_"), f"request_id {e.request_id!r}")
    same(len(seen(marker)), attempts, f"provider's {status}: attempts")
    same(e.request.headers["x-stainless-retry-count"], str(attempts - 1))
    if told == 502 and attempts == 1:
        same((e.code, e.response.headers["x-should-retry"]), ("provider_error", "false"))


@check("errors/provider")
def _():
    """All at once: most of the time passes in the SDK's waits between two attempts."""
    faults = []

    def one(row, shape):
        try:
            from_provider(*row, shape)
        except Exception as e:
            faults.append(f"{row[0]} ({shape}): {e}")

    rows = [(row, "openai") for row in PROVIDER]
    rows += [(row, shape) for row in PROVIDER if row[0] in (400, 422, 500) for shape in ("string", "detail", "flat", "html", "empty")]
    threads = [threading.Thread(target=one, args=r) for r in rows]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    same(faults, [])


@check("retries/then_success")
def _():
    control("POST", WORLD["sim"] + "/sim/config", {"status": 503, "times": 2})
    same(ask(text="mended-python").choices[0].message.content, "mended-python t1 t2")
    same(len(seen("mended-python")), 3, "attempts, the last of which the model answered")


@check("retries/retry_after")
def _():
    control("POST", WORLD["sim"] + "/sim/config", {"status": 429, "retry_after": "2", "times": 1})
    same(ask(text="later-python").choices[0].message.content, "later-python t1 t2")
    first, second = seen("later-python")
    waited = moment(second["started"]) - moment(first["started"])
    holds(waited >= 1.9, f"came again after {waited:.2f} s, although Retry-After said 2")
    return f"waited {waited:.2f} s"


@check("errors/waiting")
def _():
    """A full queue, a wait that is too long, a provider that hangs, no room for bodies: each in its class."""
    tight = WORLD["tight"]
    c = client(base_url=tight["base_url"], key=tight["key"], max_retries=0)
    results = {}

    def call(name, kind, **args):
        try:
            results[name] = raised(kind, lambda: ask(c, text=f"{name}-python " + args.pop("fill", ""), **args))
        except AssertionError as e:
            results[name] = e

    hung = threading.Thread(target=call, args=("hung", openai.InternalServerError), kwargs={"knobs": "hang", "fill": "x" * 200_000})
    hung.start()
    eventually("the provider has the request", lambda: seen("hung-python", tight["sim"]))
    queued = threading.Thread(target=call, args=("queued", openai.InternalServerError))
    queued.start()
    eventually("one waits", lambda: "iop_queued 1" in control("GET", tight["metrics"]))
    call("full", openai.RateLimitError)
    call("heavy", openai.InternalServerError, fill="x" * 100_000)
    queued.join()
    hung.join()
    for name, status, code in (("full", 429, "queue_full"), ("heavy", 503, "overloaded"), ("queued", 504, "queue_timeout"), ("hung", 504, "provider_timeout")):
        e = results[name]
        holds(isinstance(e, openai.APIStatusError), f"{name}: {e}")
        same((e.status_code, e.code), (status, code), name)
        holds(e.request_id.startswith("req_"), e.request_id)
    for name in ("full", "heavy"):
        holds(1 <= int(results[name].response.headers["retry-after"]) <= 60, f"{name}: {results[name].response.headers}")


# ---- the client goes away


def cancel_of(marker, left):
    """How many seconds after the client left the provider saw it."""
    record = eventually("the provider sees that the client left", lambda: [r for r in seen(marker) if r["state"] == "cancelled"])[0]
    return moment(record["ended"]) - left


def best_of_three(name, leave):
    """A loaded machine may be late once; it is not late three times where nothing waits."""
    took = []
    for i in range(3):
        marker = f"{name}-{i}"
        took.append(cancel_of(marker, leave(marker)))
        if took[-1] <= 1:
            return f"cancelled {took[-1] * 1000:.0f} ms later"
    raise AssertionError(f"the provider went on for {took} s")


@check("abort/stream")
def _():
    def leave(marker):
        s = ask(text=marker, knobs="tokens=100000,itl=20ms", stream=True)
        for _ in range(3):
            next(s)
        left = time.time()
        s.close()
        return left

    return best_of_three("leave-stream-python", leave)


@check("abort/unary")
def _():
    def leave(marker):
        async def main():
            async with openai.AsyncOpenAI(base_url=WORLD["base_url"], api_key=WORLD["key"], timeout=TIMEOUT) as c:
                task = asyncio.create_task(c.chat.completions.create(model=CHAT, messages=user(marker), user="sim:ttft=10m"))
                while not await asyncio.to_thread(seen, marker):
                    await asyncio.sleep(0.02)
                left = time.time()
                task.cancel()
                try:
                    await task
                except asyncio.CancelledError:
                    return left
                raise AssertionError("the task was not cancelled")

        return asyncio.run(main())

    return best_of_three("leave-unary-python", leave)


@check("abort/timeout")
def _():
    """The SDK's own timeout ends the provider's work as well."""
    raised(openai.APITimeoutError, lambda: ask(client(max_retries=0).with_options(timeout=3), text="timeout-python", knobs="ttft=10m"))
    eventually("the provider sees that the client left", lambda: [r for r in seen("timeout-python") if r["state"] == "cancelled"])


# ---- the provider breaks off: an error, never a short answer


def broken(knobs, kind=openai.APIError):
    got = []

    def read():
        for chunk in ask(model=failing(), knobs=knobs, stream=True):
            got.append(chunk)
        return f"a stream that ended well after {len(got)} chunks"

    e = raised(kind, read)
    holds(got, "no chunk before the error")
    holds(not any(c.choices and c.choices[0].finish_reason for c in got), "a finish_reason that nobody sent")
    return e


@check("broken/stream")
def _():
    for fault in ("midclose", "midreset", "midabort", "error_event_mid", "llamacpp_error", "die"):
        e = broken(f"tokens=20,itl=5ms,after=6,fault={fault}")
        holds(e.message and e.code, f"{fault}: {e.body!r}")


@check("broken/at_once")
def _():
    c = client(max_retries=0)
    for fault in ("close", "reset", "empty200", "error_event_first"):
        e = raised(openai.InternalServerError, lambda fault=fault: ask(c, model=failing(), knobs=f"fault={fault}", stream=True))
        same(e.status_code, 502, fault)
    for fault in ("close", "reset", "empty200", "midreset", "midabort"):
        e = raised(openai.InternalServerError, lambda fault=fault: ask(c, model=failing(), knobs=f"fault={fault}"))
        same(e.status_code, 502, fault)


@check("broken/responses")
def _():
    for fault in ("midclose", "midreset", "error_event_mid"):
        events = []

        def read(fault=fault, events=events):
            for e in client().responses.create(model=failing(), input="hello", user=f"sim:tokens=20,after=6,fault={fault}", stream=True):
                events.append(e)

        e = raised(openai.APIError, read)
        holds(e.message, fault)
        holds(events and not any(e.type == "response.completed" for e in events), fault)


@check("broken/node_killed")
def _():
    """The last check: there is no Node after it."""
    got = []

    def read():
        for chunk in ask(text="killed-python", knobs="tokens=100000,itl=20ms", stream=True):
            got.append(chunk)
            if len(got) == 3:
                say(do="kill-node")

    e = raised(openai.APIError, read)
    same(e.code, "node_lost")
    return e.message


run_all()
