"""Drivers of LangChain's packages: langchain-openai over both of OpenAI's interfaces, langchain-anthropic, langchain-ollama."""

import ollama
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI

from clients import ANTHROPIC_ERRORS, OPENAI_ERRORS
from matrix import Driver, Got
from world import TIMEOUT, WORLD


@tool
def get_weather(city: str) -> str:
    """Tell the weather."""
    return "sunny"


class LangChain(Driver):
    derives = True

    def model(self, session, model, key=None, limit=None, think=False, odd=None):
        raise NotImplementedError

    def call(self, session, model, text, stream=False, key=None, image=None, think=False, schema=None, odd=None, limit=None):
        llm = self.model(session, model, key, limit, think, odd)
        if image:
            text = [{"type": "text", "text": text}, {"type": "image", "base64": image.partition(",")[2], "mime_type": "image/png"}]
        messages = [HumanMessage(text)]
        if schema:
            a = llm.with_structured_output(schema, method="json_schema", include_raw=True).invoke(messages)
            return Got(value=a["parsed"], **self.usage(a["raw"]))
        a = None
        if stream:
            for part in llm.stream(messages):
                a = part if a is None else a + part
        else:
            a = llm.invoke(messages)
        thought = "".join(b.get("reasoning", "") for b in a.content_blocks if b["type"] == "reasoning")
        return Got(a.text, thought, **self.usage(a))

    def usage(self, a):
        return {"input": a.usage_metadata["input_tokens"], "output": a.usage_metadata["output_tokens"]}

    def tools(self, session, model, text, stream=False):
        llm = self.model(session, model).bind_tools([get_weather])
        messages = [HumanMessage(text)]
        a = None
        for part in llm.stream(messages) if stream else [llm.invoke(messages)]:
            a = part if a is None else a + part
        messages.append(a)
        for call in a.tool_calls:
            result = get_weather.invoke(call)
            assert isinstance(result, ToolMessage)
            messages.append(result)
        return Got(llm.invoke(messages).text, calls=[c["name"] for c in a.tool_calls])

    def structured_tools(self, session, model, schema):
        return self.model(session, model).with_structured_output(schema, method="function_calling").invoke("who is the Person")

    def leave(self, session, model, text):
        stream = self.model(session, model, limit=200000).stream([HumanMessage(text)])
        for part in stream:
            if part.text:
                break
        stream.close()


class LangChainOpenAI(LangChain):
    name, native = "langchain-openai", "openai"
    odd = {"ollama": "logit_bias", "anthropic": "logit_bias"}
    responses = False
    lacks = {"reasoning": "it does not read reasoning_content"}
    refused = {("ollama", "structured_tools"): "tool_choice"}

    def model(self, session, model, key=None, limit=None, think=False, odd=None):
        more = {}
        if limit:
            more["max_tokens"] = limit
        if think:
            more["reasoning"] = {"effort": "low", "summary": "auto"}
        if odd:
            more["model_kwargs"] = {"logit_bias": {"1": 5}} if odd == "logit_bias" else {"previous_response_id": "resp_1"}
        return ChatOpenAI(
            model=model, base_url=WORLD["url"] + "/v1", api_key=key or WORLD["key"], timeout=TIMEOUT, max_retries=0,
            default_headers=self.headers(session), stream_usage=True, use_responses_api=self.responses, **more,
        )

    def error(self, status):
        return OPENAI_ERRORS[status]


class LangChainResponses(LangChainOpenAI):
    name, native, responses = "langchain-openai-responses", "", True
    odd = dict.fromkeys(("openai", "ollama", "anthropic"), "previous_response_id")
    lacks = {}


class LangChainAnthropic(LangChain):
    name, native = "langchain-anthropic", "anthropic"
    odd = {"openai": "inference_geo", "ollama": "inference_geo"}
    refused = {("ollama", "structured_tools"): "tool_choice"}

    def model(self, session, model, key=None, limit=None, think=False, odd=None):
        more = {"max_tokens": limit or 2048}
        if think:
            more["thinking"] = {"type": "enabled", "budget_tokens": 1024}
        if odd:
            more["inference_geo"] = "us"
        return ChatAnthropic(
            model=model, base_url=WORLD["url"], api_key=key or WORLD["key"], timeout=TIMEOUT, max_retries=0,
            default_headers=self.headers(session), **more,
        )

    def error(self, status):
        return ANTHROPIC_ERRORS[status]


class LangChainOllama(LangChain):
    name, native = "langchain-ollama", "ollama"
    odd = {"openai": "options:num_gpu", "anthropic": "options:num_gpu"}

    def model(self, session, model, key=None, limit=None, think=False, odd=None):
        more = {}
        if limit:
            more["num_predict"] = limit
        if think:
            more["reasoning"] = True
        if odd:
            more["num_gpu"] = 1
        headers = {"Authorization": "Bearer " + (key or WORLD["key"])} | self.headers(session)
        return ChatOllama(model=model, base_url=WORLD["url"], client_kwargs={"headers": headers, "timeout": TIMEOUT}, **more)

    def error(self, status):
        return ollama.ResponseError


def drivers():
    return [LangChainOpenAI(), LangChainResponses(), LangChainAnthropic(), LangChainOllama()]
