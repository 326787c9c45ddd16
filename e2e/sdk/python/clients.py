"""Drivers of the official packages: openai over Chat Completions and Responses, anthropic, ollama."""

import json

import anthropic
import openai

from matrix import WEATHER_SCHEMA, Driver, Got, Person
from world import TIMEOUT, WORLD, holds, same, user

OPENAI_ERRORS = {
    0: openai.APIError,
    400: openai.BadRequestError,
    401: openai.AuthenticationError,
    404: openai.NotFoundError,
    429: openai.RateLimitError,
    502: openai.InternalServerError,
}


class OpenAI(Driver):
    def __init__(self):
        self._client = openai.OpenAI(base_url=WORLD["url"] + "/v1", api_key=WORLD["key"], timeout=TIMEOUT, max_retries=0)

    def client(self, session, key=None):
        return self._client.with_options(api_key=key or WORLD["key"], default_headers=self.headers(session))

    def error(self, status):
        return OPENAI_ERRORS[status]


class Chat(OpenAI):
    name, native = "openai-chat", "openai"
    odd = {"ollama": "logit_bias", "anthropic": "logit_bias"}

    def call(self, session, model, text, stream=False, key=None, image=None, think=False, schema=None, odd=None, limit=None):
        more = {}
        if image:
            text = [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": image}}]
        if think:
            more["reasoning_effort"] = "low"
        if odd:
            more["logit_bias"] = {"1": 5}
        if limit:
            more["max_completion_tokens"] = limit
        completions = self.client(session, key).chat.completions
        if schema:
            a = completions.parse(model=model, messages=user(text), response_format=schema)
            return Got(value=a.choices[0].message.parsed, input=a.usage.prompt_tokens, output=a.usage.completion_tokens)
        if stream:
            return self.read(completions.create(model=model, messages=user(text), stream=True, stream_options={"include_usage": True}, **more))
        a = completions.create(model=model, messages=user(text), **more)
        holds(a._request_id and a._request_id.startswith("req_"), f"_request_id {a._request_id!r}")
        m = a.choices[0].message
        same(a.choices[0].finish_reason, "length" if limit else "stop")
        return Got(m.content, (m.model_extra or {}).get("reasoning_content", ""), input=a.usage.prompt_tokens, output=a.usage.completion_tokens)

    def read(self, stream):
        got, finish = Got(), None
        for chunk in stream:
            for c in chunk.choices:
                got.text += c.delta.content or ""
                got.thought += (c.delta.model_extra or {}).get("reasoning_content") or ""
                finish = c.finish_reason or finish
            if chunk.usage:
                got.input, got.output = chunk.usage.prompt_tokens, chunk.usage.completion_tokens
        same(finish, "stop")
        return got

    def tools(self, session, model, text, stream=False):
        tool = {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER_SCHEMA, "strict": True}}
        messages, completions = user(text), self.client(session).chat.completions
        if stream:
            with completions.stream(model=model, messages=messages, tools=[tool]) as s:
                for _ in s:
                    pass
                message = s.get_final_completion().choices[0].message
        else:
            message = completions.create(model=model, messages=messages, tools=[tool]).choices[0].message
        messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
        for call in message.tool_calls:
            holds(json.loads(call.function.arguments)["city"], call)
            call.function.__dict__.pop("parsed_arguments", None)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "sunny"})
        for call in messages[1]["tool_calls"]:
            call["function"].pop("parsed_arguments", None)
        end = completions.create(model=model, messages=messages, tools=[tool]).choices[0].message
        return Got(end.content, calls=[c.function.name for c in message.tool_calls])

    def leave(self, session, model, text):
        stream = self.client(session).chat.completions.create(model=model, messages=user(text), stream=True)
        next(iter(stream))
        stream.close()


class Responses(OpenAI):
    name, native = "openai-responses", ""
    odd = {"openai": "previous_response_id", "ollama": "previous_response_id", "anthropic": "previous_response_id"}

    def call(self, session, model, text, stream=False, key=None, image=None, think=False, schema=None, odd=None, limit=None):
        more = {}
        if image:
            text = [{"role": "user", "content": [{"type": "input_text", "text": text}, {"type": "input_image", "image_url": image, "detail": "auto"}]}]
        if think:
            more["reasoning"] = {"effort": "low", "summary": "auto"}
        if odd:
            more["previous_response_id"] = "resp_1"
        if limit:
            more["max_output_tokens"] = limit
        responses = self.client(session, key).responses
        if schema:
            a = responses.parse(model=model, input=text, text_format=schema)
            return Got(value=a.output_parsed, input=a.usage.input_tokens, output=a.usage.output_tokens)
        if not stream:
            a = responses.create(model=model, input=text, **more)
            same(a.status, "incomplete" if limit else "completed")
            thought = "".join(s.text for item in a.output if item.type == "reasoning" for s in item.summary)
            return Got(a.output_text, thought, input=a.usage.input_tokens, output=a.usage.output_tokens)
        got, last = Got(), None
        for e in responses.create(model=model, input=text, stream=True, **more):
            last = e
            if e.type == "response.output_text.delta":
                got.text += e.delta
            elif e.type == "response.reasoning_summary_text.delta":
                got.thought += e.delta
        same(last.type, "response.completed")
        same(last.response.output_text, got.text)
        got.input, got.output = last.response.usage.input_tokens, last.response.usage.output_tokens
        return got

    def tools(self, session, model, text, stream=False):
        tool = {"type": "function", "name": "get_weather", "parameters": WEATHER_SCHEMA, "strict": True}
        items, responses = user(text), self.client(session).responses
        if stream:
            with responses.stream(model=model, input=items, tools=[tool]) as s:
                for _ in s:
                    pass
                a = s.get_final_response()
        else:
            a = responses.create(model=model, input=items, tools=[tool])
        calls = [item for item in a.output if item.type == "function_call"]
        items += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in a.output]
        items += [{"type": "function_call_output", "call_id": c.call_id, "output": "sunny"} for c in calls]
        end = responses.create(model=model, input=items, tools=[tool])
        return Got(end.output_text, calls=[c.name for c in calls])

    def leave(self, session, model, text):
        stream = self.client(session).responses.create(model=model, input=text, stream=True)
        for e in stream:
            if e.type == "response.output_text.delta":
                break
        stream.close()


ANTHROPIC_ERRORS = {
    0: (anthropic.APIError, anthropic.APIStatusError, anthropic.InternalServerError),
    400: anthropic.BadRequestError,
    401: anthropic.AuthenticationError,
    404: anthropic.NotFoundError,
    429: anthropic.RateLimitError,
    502: anthropic.InternalServerError,
}


class Messages(Driver):
    native = "anthropic"
    odd = {"openai": "inference_geo", "ollama": "inference_geo"}

    def __init__(self, name, key_header, version):
        self.name = name
        self._client = anthropic.Anthropic(base_url=WORLD["url"], api_key=WORLD["key"], timeout=TIMEOUT, max_retries=0)
        self.key_header, self.version = key_header, version

    def client(self, session, key=None):
        return self._client.with_options(api_key=key or WORLD["key"], default_headers=self.headers(session))

    def error(self, status):
        return ANTHROPIC_ERRORS[status]

    def call(self, session, model, text, stream=False, key=None, image=None, think=False, schema=None, odd=None, limit=None):
        more = {"max_tokens": limit or 2048}
        if image:
            source = {"type": "base64", "media_type": "image/png", "data": image.partition(",")[2]}
            text = [{"type": "text", "text": text}, {"type": "image", "source": source}]
        if think:
            more["thinking"] = {"type": "enabled", "budget_tokens": 1024}
        if odd:
            more["extra_body"] = {"inference_geo": "us"}
        messages = self.client(session, key).messages
        if schema:
            a = messages.parse(model=model, messages=user(text), output_format=schema, **more)
            return Got(value=a.parsed_output, **self.usage(a))
        if stream:
            with messages.stream(model=model, messages=user(text), **more) as s:
                text = "".join(s.text_stream)
                a = s.get_final_message()
            same(text, "".join(b.text for b in a.content if b.type == "text"))
        else:
            raw = messages.with_raw_response.create(model=model, messages=user(text), **more)
            sent = raw.http_request.headers
            holds(self.key_header in sent and sent["anthropic-version"] == self.version, f"not the authorization that this version was chosen for: {list(sent)}")
            holds(raw.headers["request-id"].startswith("req_"), dict(raw.headers))
            a = raw.parse()
        same(a.stop_reason, "max_tokens" if limit else "end_turn")
        texts = [b.text for b in a.content if b.type == "text"]
        thoughts = [b.thinking for b in a.content if b.type == "thinking"]
        return Got("".join(texts), "".join(thoughts), **self.usage(a))

    def usage(self, a):
        u = a.usage
        return {"input": u.input_tokens + (u.cache_read_input_tokens or 0) + (u.cache_creation_input_tokens or 0), "output": u.output_tokens}

    def tools(self, session, model, text, stream=False):
        tool = {"name": "get_weather", "input_schema": WEATHER_SCHEMA}
        history, messages = user(text), self.client(session).messages
        ask = {"model": model, "max_tokens": 2048, "tools": [tool]}
        if stream:
            with messages.stream(messages=history, **ask) as s:
                a = s.get_final_message()
        else:
            a = messages.create(messages=history, **ask)
        same(a.stop_reason, "tool_use")
        calls = [b for b in a.content if b.type == "tool_use"]
        holds(all(c.input["city"] for c in calls), calls)
        history.append({"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in a.content]})
        history.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": c.id, "content": "sunny"} for c in calls]})
        end = messages.create(messages=history, **ask)
        return Got("".join(b.text for b in end.content if b.type == "text"), calls=[c.name for c in calls])

    def leave(self, session, model, text):
        with self.client(session).messages.stream(model=model, messages=user(text), max_tokens=200000) as s:
            next(iter(s.text_stream))

    def extra(self):
        """Further checks of this client's own calls: (name, function)."""

        def count(kind):
            return lambda: holds(self._client.messages.count_tokens(model=f"{kind}-model", messages=user("hello " * 40)).input_tokens > 20, "too few tokens")

        def beta():
            a = self.client("beta").beta.messages.create(model="ollama-model", max_tokens=50, messages=user("hello"), betas=["context-management-2025-06-27"])
            holds(a.content[0].text, a)

        def models():
            listed = {m.id for m in self._client.models.list()}
            for kind in ("openai", "ollama", "anthropic"):
                same(self._client.models.retrieve(f"{kind}-model").id, f"{kind}-model")
                holds(f"{kind}-model" in listed, f"{kind}-model is not listed")

        yield f"{self.name}/beta", beta
        yield f"{self.name}/models", models
        for kind in ("openai", "ollama", "anthropic"):
            yield f"{self.name}/{kind}/count_tokens", count(kind)
