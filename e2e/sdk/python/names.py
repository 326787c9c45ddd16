"""Names of models and base URLs, as people type them, with the official packages. Run by the Go test; see world.py for how it reports."""

import json

import anthropic
import ollama
import openai

from world import TIMEOUT, WORLD, check, client, holds, raised, run_all, same, seen, user

TYPED, SERVED = "llama3.2", "llama3.2:latest"


def claude(base_url=None):
    return anthropic.Anthropic(base_url=base_url or WORLD["base_url"].removesuffix("/v1"), api_key=WORLD["key"], timeout=TIMEOUT, max_retries=0)


def served_as(marker):
    """The names of the model in the requests that the provider got with the marker."""
    return {json.loads(r["body"])["model"] for r in seen(marker)}


@check("names/openai_stream")
def _():
    text, names = "", set()
    for chunk in client().chat.completions.create(model=TYPED, messages=user("typed by openai"), stream=True):
        names.add(chunk.model)
        text += chunk.choices[0].delta.content or ""
    holds(text.startswith("typed by openai"), text)
    same(names, {TYPED}, "the model of the chunks")
    same(served_as("typed by openai"), {SERVED}, "what the provider was asked for")


@check("names/openai_responses")
def _():
    a = client().responses.create(model=TYPED, input="typed for a response")
    same(a.model, TYPED)
    same(served_as("typed for a response"), {SERVED}, "what the provider was asked for")


@check("names/anthropic_stream")
def _():
    with claude().messages.stream(model=TYPED, max_tokens=50, messages=user("typed by anthropic")) as s:
        text = "".join(s.text_stream)
        same(s.get_final_message().model, TYPED)
    holds(text.startswith("typed by anthropic"), text)
    same(served_as("typed by anthropic"), {SERVED}, "what the provider was asked for")


@check("names/retrieve")
def _():
    same(client().models.retrieve(TYPED).id, SERVED)
    same(claude().models.retrieve(TYPED).id, SERVED)


@check("names/suggested")
def _():
    e = raised(openai.NotFoundError, lambda: client(max_retries=0).chat.completions.create(model="lama3.2", messages=user("x")))
    holds("Did you mean 'llama3.2:latest'? GET /v1/models lists" in str(e), str(e))
    try:
        claude().messages.create(model="llama3.1", max_tokens=5, messages=user("x"))
        raise AssertionError("served")
    except anthropic.NotFoundError as e:
        holds("Did you mean 'llama3.2:latest'?" in str(e), str(e))


ROOT = WORLD["base_url"].removesuffix("/v1")


@check("urls/openai_wrong")
def _():
    for base in ("", "/v1/v1", "/api", "/api/v1", "/v1/chat/completions", "/openai"):
        c = client(base_url=ROOT + base, max_retries=0)
        for ask in (lambda: c.chat.completions.create(model=TYPED, messages=user("x")), lambda: c.models.list(), lambda: c.models.retrieve(TYPED)):
            e = raised(openai.NotFoundError, ask)
            same(e.code, "unknown_path", base)
            holds("The base URL for OpenAI SDKs is this server's address followed by /v1" in e.message, f"{base}: {e.message}")
    e = raised(openai.NotFoundError, lambda: client(base_url=ROOT, max_retries=0).chat.completions.create(model=TYPED, messages=user("x")))
    return str(e)


@check("urls/anthropic_wrong")
def _():
    for base in ("/v1", "/api", "/anthropic"):
        try:
            claude(ROOT + base).messages.create(model=TYPED, max_tokens=5, messages=user("x"))
            raise AssertionError(base)
        except anthropic.NotFoundError as e:
            same(e.body["error"]["type"], "not_found_error")
            holds("Use /v1/messages. The base URL for Anthropic SDKs" in e.body["error"]["message"], f"{base}: {e}")


@check("urls/ollama_wrong")
def _():
    for base in ("/v1", "/api"):
        try:
            ollama.Client(host=ROOT + base).chat(model=TYPED, messages=user("x"))
            raise AssertionError(base)
        except ollama.ResponseError as e:
            same(e.status_code, 404)
            holds("Use /api/chat. The base URL for Ollama clients (OLLAMA_HOST)" in e.error, f"{base}: {e}")


@check("urls/slash")
def _():
    """A slash at the end of the base URL, and one behind the path."""
    same(client(base_url=ROOT + "/v1/").models.retrieve(TYPED).id, SERVED)
    a = client().post("/chat/completions/", cast_to=object, body={"model": TYPED, "messages": user("behind a slash")})
    holds(a["choices"][0]["message"]["content"].startswith("behind a slash"), a)


if __name__ == "__main__":
    run_all()
