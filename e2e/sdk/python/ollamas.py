"""Driver of the official ollama package."""


import ollama

from matrix import WEATHER_SCHEMA, Driver, Got
from world import TIMEOUT, WORLD, holds, same, user


class Ollama(Driver):
    name, native = "ollama", "ollama"
    odd = {"openai": "options:num_gpu", "anthropic": "options:num_gpu"}

    def client(self, session, key=None):
        headers = {"Authorization": "Bearer " + (key or WORLD["key"])} | self.headers(session)
        return ollama.Client(host=WORLD["url"], headers=headers, timeout=TIMEOUT)

    def error(self, status):
        return ollama.ResponseError

    def call(self, session, model, text, stream=False, key=None, image=None, think=False, schema=None, odd=None, limit=None):
        message, more, options = {"role": "user", "content": text}, {}, {}
        if image:
            message["images"] = [image.partition(",")[2]]
        if think:
            more["think"] = True
        if schema:
            more["format"] = schema.model_json_schema()
        if odd:
            options["num_gpu"] = 1
        if limit:
            options["num_predict"] = limit
        if options:
            more["options"] = options
        a = self.client(session, key).chat(model=model, messages=[message], stream=stream, **more)
        parts = list(a) if stream else [a]
        last = parts[-1]
        holds(last.done and last.done_reason == ("length" if limit else "stop"), last)
        got = Got("".join(p.message.content or "" for p in parts), "".join(p.message.thinking or "" for p in parts))
        got.input, got.output = last.prompt_eval_count, last.eval_count
        if schema:
            got.value = schema.model_validate_json(got.text)
        return got

    def tools(self, session, model, text, stream=False):
        tool = {"type": "function", "function": {"name": "get_weather", "description": "the weather", "parameters": WEATHER_SCHEMA}}
        messages, client = user(text), self.client(session)
        a = client.chat(model=model, messages=messages, tools=[tool], stream=stream)
        calls = []
        for part in a if stream else [a]:
            if part.message.tool_calls:
                messages.append(part.message)
                calls += part.message.tool_calls
        for c in calls:
            holds(c.function.arguments["city"], c)
            messages.append({"role": "tool", "tool_name": c.function.name, "content": "sunny"})
        end = client.chat(model=model, messages=messages, tools=[tool])
        return Got(end.message.content, calls=[c.function.name for c in calls])

    def leave(self, session, model, text):
        stream = self.client(session).chat(model=model, messages=user(text), stream=True)
        next(stream)
        stream.close()


def extra():
    d = Ollama()

    def generate(kind):
        def f():
            got = d.client("generate").generate(model=f"{kind}-model", prompt="sim:tokens=5 hello there")
            same(got.response, "hello there t2 t3 t4")
            parts = list(d.client("generate").generate(model=f"{kind}-model", prompt="sim:tokens=5 hello there", stream=True))
            same("".join(p.response for p in parts), got.response)

        return f

    def documents():
        c = d.client("documents")
        listed = {m.model for m in c.list().models}
        # An alias of Ollama's own kind: a model without a tag is its latest.
        for kind in ("openai", "ollama", "anthropic"):
            holds(listed & {f"{kind}-model", f"{kind}-model:latest"}, sorted(listed)[:20])
            holds("completion" in c.show(f"{kind}-model").capabilities, c.show(f"{kind}-model"))
        c.ps()

    def path_key():
        """The key in the path, for a client that can send no header."""
        c = ollama.Client(host=WORLD["url"] + "/k/" + WORLD["key"], timeout=TIMEOUT)
        same(c.chat(model="anthropic-model", messages=user("sim:tokens=3 hello")).message.content, "hello t1 t2")
        holds(c.list().models, "no models")

    yield "ollama/documents", documents
    yield "ollama/path_key", path_key
    for kind in ("openai", "ollama", "anthropic"):
        yield f"ollama/{kind}/generate", generate(kind)
