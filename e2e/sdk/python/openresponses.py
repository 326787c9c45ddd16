"""The seven requests of Open Responses' compliance suite, each object and event checked against its published schema."""

import json
import urllib.request

import openresponses_types as spec

from matrix import DATA_URL
from world import TIMEOUT, WORLD, holds, same

TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
}


def message(role, content):
    return {"type": "message", "role": role, "content": content}


REQUESTS = {
    "basic": {"input": [message("user", "Say hello in exactly 3 words.")]},
    "stream": {"input": [message("user", "Count from 1 to 5.")], "stream": True},
    "system": {"input": [message("system", "You are a pirate. Always respond in pirate speak."), message("user", "Say hello.")]},
    "tools": {"input": [message("user", "Use get_weather: what's the weather like in San Francisco?")], "tools": [TOOL]},
    "tools_stream": {"input": [message("user", "Use get_weather: what's the weather like in San Francisco?")], "tools": [TOOL], "stream": True},
    "image": {
        "input": [
            message("user", [{"type": "input_text", "text": "What do you see in this image? Answer in one sentence."}, {"type": "input_image", "image_url": DATA_URL}])
        ]
    },
    "turns": {
        "input": [
            message("user", "My name is Alice."),
            message("assistant", "Hello Alice! Nice to meet you. How can I help you today?"),
            message("user", "What is my name?"),
        ]
    },
}

# The schema's classes, by the type that an event bears.
EVENTS = {}
for name in dir(spec):
    if name.endswith("StreamingEvent"):
        kind = getattr(spec, name)
        values = list(kind.model_fields["type"].annotation)
        EVENTS[values[0].value] = kind


def post(body):
    headers = {"Authorization": "Bearer " + WORLD["key"], "Content-Type": "application/json"}
    req = urllib.request.Request(WORLD["url"] + "/v1/responses", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(req, timeout=TIMEOUT) as res:
        return res.headers, res.read().decode()


def check_whole(answer, name):
    spec.ResponseResource.model_validate(answer)
    same(answer["status"], "completed")
    kinds = [item["type"] for item in answer["output"]]
    holds(("function_call" if name.startswith("tools") else "message") in kinds, kinds)


def check_stream(text, name):
    last = None
    for i, block in enumerate(text.strip().split("\n\n")):
        lines = [line for line in block.split("\n") if not line.startswith(":")]
        fields = dict(line.split(": ", 1) for line in lines)
        event = json.loads(fields["data"])
        same(event["type"], fields["event"])
        same(event["sequence_number"], i, event["type"])
        try:
            EVENTS[event["type"]].model_validate(event)
        except Exception as e:
            raise AssertionError(f"{block}: {e}") from e
        last = event
    same(last["type"], "response.completed")
    check_whole(last["response"], name)


def extra():
    def one(model, want, name):
        def f():
            headers, text = post({"model": model} | REQUESTS[name])
            same(headers["x-iop-execution"], want)
            if REQUESTS[name].get("stream"):
                check_stream(text, name)
            else:
                check_whole(json.loads(text), name)

        return f

    for kind, want in (("full", "raw"), ("openai", "normalized"), ("ollama", "normalized"), ("anthropic", "normalized")):
        for name in REQUESTS:
            yield f"open-responses/{kind}/{name}", one(f"{kind}-model", want, name)
