"""Drivers of pydantic-ai: agents over Chat Completions, Responses and Messages."""

import asyncio
import base64

import anthropic
import openai
import pydantic_ai.exceptions as errors
from pydantic_ai import Agent, BinaryContent, NativeOutput, ToolOutput
from pydantic_ai.messages import ThinkingPart
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from matrix import PNG, Driver, Got
from world import TIMEOUT, WORLD


class PydanticAI(Driver):
    derives = True

    def model(self, model, key):
        raise NotImplementedError

    def settings(self, session, think, odd, limit):
        raise NotImplementedError

    def call(self, session, model, text, stream=False, key=None, image=None, think=False, schema=None, odd=None, limit=None):
        prompt = [text, BinaryContent(data=base64.b64decode(PNG), media_type="image/png")] if image else text

        async def main():
            agent = Agent(self.model(model, key or WORLD["key"]), output_type=NativeOutput(schema) if schema else str, retries=0)
            settings = self.settings(session, think, odd, limit)
            if not stream:
                return await agent.run(prompt, model_settings=settings), None
            async with agent.run_stream(prompt, model_settings=settings) as s:
                text = await s.get_output()
                return s, text

        a, text = asyncio.run(main())
        thought = "".join(p.content for m in a.all_messages() for p in m.parts if isinstance(p, ThinkingPart))
        u = a.usage
        got = Got("", thought, input=u.input_tokens, output=u.output_tokens)
        if schema:
            got.value = a.output
        else:
            got.text = text if stream else a.output
        return got

    def tools(self, session, model, text, stream=False):
        called = []

        async def main():
            agent = Agent(self.model(model, WORLD["key"]))

            @agent.tool_plain
            def get_weather(city: str) -> str:
                called.append("get_weather")
                return "sunny"

            settings = self.settings(session, False, None, None)
            if not stream:
                return (await agent.run(text, model_settings=settings)).output
            async with agent.run_stream(text, model_settings=settings) as s:
                return await s.get_output()

        return Got(asyncio.run(main()), calls=called)

    def structured_tools(self, session, model, schema):
        agent = Agent(self.model(model, WORLD["key"]), output_type=ToolOutput(schema))
        return asyncio.run(agent.run("who", model_settings=self.settings(session, False, None, None))).output

    def leave(self, session, model, text):
        async def main():
            agent = Agent(self.model(model, WORLD["key"]))
            async with agent.run_stream(text, model_settings=self.settings(session, False, None, 200000)) as s:
                async for _ in s.stream_text(delta=True, debounce_by=None):
                    break
                await s.cancel()

        asyncio.run(main())

    def error(self, status):
        return {
            0: (errors.ModelAPIError, errors.UnexpectedModelBehavior),
            400: errors.ModelHTTPError,
            401: errors.ModelAuthenticationError,
            404: errors.ModelNotFoundError,
            429: errors.ModelRateLimitError,
            502: errors.ModelServerError,
        }[status]


class PydanticChat(PydanticAI):
    name, native = "pydantic-ai-chat", "openai"
    odd = {"ollama": "logit_bias", "anthropic": "logit_bias"}
    refused = {("ollama", "structured_tools"): "tool_choice"}
    kind = OpenAIChatModel

    def model(self, model, key):
        client = openai.AsyncOpenAI(base_url=WORLD["url"] + "/v1", api_key=key, max_retries=0, timeout=TIMEOUT)
        return self.kind(model, provider=OpenAIProvider(openai_client=client))

    def settings(self, session, think, odd, limit):
        more = {"extra_headers": self.headers(session)}
        if think:
            more["openai_reasoning_effort"] = "low"
        if odd == "logit_bias":
            more["logit_bias"] = {"1": 5}
        elif odd:
            more["extra_body"] = {"previous_response_id": "resp_1"}
        if limit:
            more["max_tokens"] = limit
        return more


class PydanticResponses(PydanticChat):
    name, native = "pydantic-ai-responses", ""
    odd = dict.fromkeys(("openai", "ollama", "anthropic"), "previous_response_id")
    kind = OpenAIResponsesModel


class PydanticAnthropic(PydanticAI):
    name, native = "pydantic-ai-anthropic", "anthropic"
    lacks = {"structured": "it asks for it only of models whose names it knows; structured_tools is its other way"}
    odd = {"openai": "inference_geo", "ollama": "inference_geo"}
    refused = {("ollama", "structured_tools"): "tool_choice"}

    def model(self, model, key):
        client = anthropic.AsyncAnthropic(base_url=WORLD["url"], api_key=key, max_retries=0, timeout=TIMEOUT)
        return AnthropicModel(model, provider=AnthropicProvider(anthropic_client=client))

    def settings(self, session, think, odd, limit):
        more = {"extra_headers": self.headers(session), "max_tokens": limit or 2048}
        if think:
            more["anthropic_thinking"] = {"type": "enabled", "budget_tokens": 1024}
        if odd:
            more["extra_body"] = {"inference_geo": "us"}
        return more


def drivers():
    return [PydanticChat(), PydanticResponses(), PydanticAnthropic()]
