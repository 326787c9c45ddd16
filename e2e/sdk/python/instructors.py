"""Drivers of instructor, over Chat Completions and Messages."""

import anthropic
import instructor
import openai
from instructor.core.exceptions import InstructorRetryException

from matrix import Driver, Got
from world import TIMEOUT, WORLD, user

# What it is for is structured output alone.
NOT_ITS_BUSINESS = dict.fromkeys(
    ["unary", "stream", "limit", "tools", "tools_stream", "image", "reasoning", "abort", "broken_died", "broken_error", "broken_json", "broken_end", "error_400",
     "error_overflow"],
    "instructor is for structured output alone",
)


class Instructor(Driver):
    lacks = NOT_ITS_BUSINESS

    def client(self, session, key, mode):
        raise NotImplementedError

    def call(self, session, model, text, stream=False, key=None, schema=None, mode="json", **_):
        from matrix import Person

        ask = {"model": model, "messages": user(text), "response_model": schema or Person, "max_retries": 1} | self.more
        value, a = self.client(session, key or WORLD["key"], self.modes[mode]).chat.completions.create_with_completion(**ask)
        return Got(value=value, **self.usage(a))

    def structured_tools(self, session, model, schema):
        return self.call(session, model, "who", schema=schema, mode="tools").value

    def structured_partial(self, session, model, schema):
        """Read objects that grow while they are streamed; return the last."""
        client = self.client(session, WORLD["key"], self.modes["json"])
        *_, last = client.chat.completions.create_partial(model=model, messages=user("who"), response_model=schema, **self.more)
        return schema(**last.model_dump())

    def error(self, status):
        return InstructorRetryException


class InstructorOpenAI(Instructor):
    name, native, more = "instructor-openai", "openai", {}
    modes = {"json": instructor.Mode.JSON_SCHEMA, "tools": instructor.Mode.TOOLS}
    refused = {("ollama", "structured_tools"): "tool_choice"}

    def client(self, session, key, mode):
        c = openai.OpenAI(base_url=WORLD["url"] + "/v1", api_key=key, timeout=TIMEOUT, max_retries=0, default_headers=self.headers(session))
        return instructor.from_openai(c, mode=mode)

    def usage(self, a):
        return {"input": a.usage.prompt_tokens, "output": a.usage.completion_tokens}


class InstructorAnthropic(Instructor):
    name, native, more = "instructor-anthropic", "anthropic", {"max_tokens": 1000}
    # Its mode for JSON asks in words alone, which a simulator does not understand.
    modes = dict.fromkeys(("json", "tools"), instructor.Mode.ANTHROPIC_TOOLS)
    refused = {("ollama", case): "tool_choice" for case in ("structured", "structured_tools", "structured_partial")}

    def client(self, session, key, mode):
        c = anthropic.Anthropic(base_url=WORLD["url"], api_key=key, timeout=TIMEOUT, max_retries=0, default_headers=self.headers(session))
        return instructor.from_anthropic(c, mode=mode)

    def usage(self, a):
        u = a.usage
        return {"input": u.input_tokens + (u.cache_read_input_tokens or 0), "output": u.output_tokens}


def drivers():
    return [InstructorOpenAI(), InstructorAnthropic()]
