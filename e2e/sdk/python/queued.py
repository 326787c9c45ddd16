"""A stream of the official packages that has to queue: its head comes while it waits, and what the queue says is no event."""

import json
import sys

import anthropic
import ollama
import openai

target = json.loads(sys.argv[1])
text = "sim:tokens=4 hello"
messages = [{"role": "user", "content": text}]
gpt = openai.OpenAI(base_url=target["url"] + "/v1", api_key=target["key"], timeout=60, max_retries=0)
claude = anthropic.Anthropic(base_url=target["url"], api_key=target["key"], timeout=60, max_retries=0)


def head(response):
    assert response.headers["x-iop-queue-position"] == "1", response.headers
    assert "x-iop-queue-ms" not in response.headers, response.headers
    print("head", flush=True)
    return response.parse()


def chat():
    with gpt.chat.completions.with_streaming_response.create(model="chat", messages=messages, stream=True) as response:
        return "".join(c.choices[0].delta.content or "" for c in head(response) if c.choices)


def responses():
    with gpt.responses.with_streaming_response.create(model="chat", input=text, stream=True) as response:
        return "".join(e.delta for e in head(response) if e.type == "response.output_text.delta")


def messages_():
    with claude.messages.with_streaming_response.create(model="chat", max_tokens=50, messages=messages, stream=True) as response:
        return "".join(e.delta.text for e in head(response) if e.type == "content_block_delta")


def ollama_():
    client = ollama.Client(host=target["url"], headers={"Authorization": "Bearer " + target["key"]}, timeout=60)
    return "".join(part.message.content or "" for part in client.chat(model="chat", messages=messages, stream=True))


print("ready", flush=True)
got = {"chat": chat, "responses": responses, "messages": messages_, "ollama": ollama_}[target["kind"]]()
assert got.endswith("t1 t2 t3"), got
