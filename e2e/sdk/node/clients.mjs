// Drivers of the official packages: openai over Chat Completions and Responses, anthropic, ollama.

import { PERSON, TIMEOUT, WEATHER, WORLD, holds, load, same, user } from "./matrixworld.mjs";

const headersOf = (session) => ({ "X-Session-Id": session });

function openaiErrors(sdk) {
  return {
    0: sdk.APIError, 400: sdk.BadRequestError, 401: sdk.AuthenticationError, 404: sdk.NotFoundError, 429: sdk.RateLimitError, 502: sdk.InternalServerError,
  };
}

class OpenAIDriver {
  constructor(sdk, name) {
    Object.assign(this, { sdk, name, errors: openaiErrors(sdk) });
  }

  client(session, key = WORLD.key) {
    return new this.sdk.OpenAI({ baseURL: WORLD.url + "/v1", apiKey: key, timeout: TIMEOUT, maxRetries: 0, defaultHeaders: headersOf(session) });
  }
}

class Chat extends OpenAIDriver {
  native = "openai";
  odd = "logit_bias";

  async call({ session, model, text, stream, key, image, think, schema, odd, limit }) {
    const more = {};
    let content = text;
    if (image) content = [{ type: "text", text }, { type: "image_url", image_url: { url: image } }];
    if (think) more.reasoning_effort = "low";
    if (odd) more.logit_bias = { 1: 5 };
    if (limit) more.max_completion_tokens = limit;
    if (schema) more.response_format = { type: "json_schema", json_schema: { name: "person", strict: true, schema: PERSON } };
    const { completions } = this.client(session, key).chat;
    const ask = { model, messages: user(content), ...more };
    const got = { text: "", thought: "" };
    let finish;
    if (stream) {
      for await (const chunk of await completions.create({ ...ask, stream: true, stream_options: { include_usage: true } })) {
        for (const c of chunk.choices) {
          got.text += c.delta.content ?? "";
          got.thought += c.delta.reasoning_content ?? "";
          finish = c.finish_reason ?? finish;
        }
        if (chunk.usage) Object.assign(got, { input: chunk.usage.prompt_tokens, output: chunk.usage.completion_tokens });
      }
    } else {
      const a = await (schema ? completions.parse(ask) : completions.create(ask));
      const m = a.choices[0].message;
      finish = a.choices[0].finish_reason;
      holds(a._request_id?.startsWith("req_"), `_request_id ${a._request_id}`);
      Object.assign(got, { text: m.content, thought: m.reasoning_content ?? "", input: a.usage.prompt_tokens, output: a.usage.completion_tokens });
      if (schema) got.value = JSON.parse(m.content);
    }
    same(finish, limit ? "length" : "stop");
    return got;
  }

  async tools({ session, model, text, stream }) {
    const tools = [{ type: "function", function: { name: "get_weather", parameters: WEATHER, strict: true } }];
    const { completions } = this.client(session).chat;
    const messages = user(text);
    const a = stream ? await completions.stream({ model, messages, tools }).finalChatCompletion() : await completions.create({ model, messages, tools });
    const m = a.choices[0].message;
    messages.push(m);
    for (const c of m.tool_calls) {
      holds(JSON.parse(c.function.arguments).city, c);
      messages.push({ role: "tool", tool_call_id: c.id, content: "sunny" });
    }
    const end = await completions.create({ model, messages, tools });
    return { text: end.choices[0].message.content, calls: m.tool_calls.map((c) => c.function.name) };
  }

  async leave({ session, model, text }) {
    const stream = await this.client(session).chat.completions.create({ model, messages: user(text), stream: true });
    for await (const _ of stream) break;
  }
}

class Responses extends OpenAIDriver {
  native = "";
  odd = "previous_response_id";

  async call({ session, model, text, stream, key, image, think, schema, odd, limit }) {
    const more = {};
    let input = text;
    if (image) input = user([{ type: "input_text", text }, { type: "input_image", image_url: image, detail: "auto" }]);
    if (think) more.reasoning = { effort: "low", summary: "auto" };
    if (odd) more.previous_response_id = "resp_1";
    if (limit) more.max_output_tokens = limit;
    if (schema) more.text = { format: { type: "json_schema", name: "person", strict: true, schema: PERSON } };
    const { responses } = this.client(session, key);
    let a, thought = "", streamed = "";
    if (stream) {
      for await (const e of await responses.create({ model, input, stream: true, ...more })) {
        if (e.type === "response.output_text.delta") streamed += e.delta;
        if (e.type === "response.reasoning_summary_text.delta") thought += e.delta;
        a = e.response ?? a;
      }
      // Only whole answers have it in `output_text`.
      a.output_text = a.output.flatMap((o) => o.content ?? []).map((c) => c.text).join("");
      same(streamed, a.output_text);
    } else {
      a = await responses.create({ model, input, ...more });
      thought = a.output.flatMap((o) => o.summary ?? []).map((s) => s.text).join("");
    }
    same(a.status, limit ? "incomplete" : "completed");
    return { text: a.output_text, thought, value: schema && JSON.parse(a.output_text), input: a.usage.input_tokens, output: a.usage.output_tokens };
  }

  async tools({ session, model, text, stream }) {
    const tools = [{ type: "function", name: "get_weather", parameters: WEATHER, strict: true }];
    const { responses } = this.client(session);
    const input = user(text);
    const a = stream ? await responses.stream({ model, input, tools }).finalResponse() : await responses.create({ model, input, tools });
    const calls = a.output.filter((o) => o.type === "function_call");
    // What the helper adds to an item is not for the wire.
    input.push(...a.output.map(({ parsed_arguments, ...item }) => item));
    input.push(...calls.map((c) => ({ type: "function_call_output", call_id: c.call_id, output: "sunny" })));
    const end = await responses.create({ model, input, tools });
    return { text: end.output_text, calls: calls.map((c) => c.name) };
  }

  async leave({ session, model, text }) {
    for await (const e of await this.client(session).responses.create({ model, input: text, stream: true })) {
      if (e.type === "response.output_text.delta") break;
    }
  }
}

class Messages {
  native = "anthropic";
  odd = "inference_geo";

  constructor(sdk, name, keyHeader, version) {
    Object.assign(this, { sdk, name, keyHeader, version });
    this.errors = {
      0: [sdk.APIError, sdk.InternalServerError], 400: sdk.BadRequestError, 401: sdk.AuthenticationError, 404: sdk.NotFoundError,
      429: sdk.RateLimitError, 502: sdk.InternalServerError,
    };
  }

  client(session, key = WORLD.key) {
    const seen = async (url, init) => {
      const sent = new Headers(init.headers);
      holds(sent.has(this.keyHeader) && sent.get("anthropic-version") === this.version, `not the authorization that this version was chosen for: ${[...sent.keys()]}`);
      return fetch(url, init);
    };
    return new this.sdk.Anthropic({ baseURL: WORLD.url, apiKey: key, timeout: TIMEOUT, maxRetries: 0, defaultHeaders: headersOf(session), fetch: seen });
  }

  async call({ session, model, text, stream, key, image, think, schema, odd, limit }) {
    const more = { max_tokens: limit ?? 2048 };
    let content = text;
    if (image) content = [{ type: "text", text }, { type: "image", source: { type: "base64", media_type: "image/png", data: image.split(",")[1] } }];
    if (think) more.thinking = { type: "enabled", budget_tokens: 1024 };
    if (odd) more.inference_geo = "us";
    if (schema) more.output_config = { format: { type: "json_schema", schema: PERSON } };
    const { messages } = this.client(session, key);
    const ask = { model, messages: user(content), ...more };
    let a;
    if (stream) {
      a = await messages.stream(ask).finalMessage();
    } else {
      const raw = await messages.create(ask).withResponse();
      holds(raw.request_id?.startsWith("req_"), `request_id ${raw.request_id}`);
      a = raw.data;
    }
    same(a.stop_reason, limit ? "max_tokens" : "end_turn");
    const u = a.usage, texts = a.content.map((b) => b.text ?? "").join("");
    return {
      text: texts, thought: a.content.map((b) => b.thinking ?? "").join(""), value: schema && JSON.parse(texts),
      input: u.input_tokens + (u.cache_read_input_tokens ?? 0) + (u.cache_creation_input_tokens ?? 0), output: u.output_tokens,
    };
  }

  async tools({ session, model, text, stream }) {
    const ask = { model, max_tokens: 2048, tools: [{ name: "get_weather", input_schema: WEATHER }] };
    const history = user(text);
    const { messages } = this.client(session);
    const a = stream ? await messages.stream({ ...ask, messages: history }).finalMessage() : await messages.create({ ...ask, messages: history });
    same(a.stop_reason, "tool_use");
    const calls = a.content.filter((b) => b.type === "tool_use");
    holds(calls.every((c) => c.input.city), calls);
    history.push({ role: "assistant", content: a.content });
    history.push({ role: "user", content: calls.map((c) => ({ type: "tool_result", tool_use_id: c.id, content: "sunny" })) });
    const end = await messages.create({ ...ask, messages: history });
    return { text: end.content.map((b) => b.text ?? "").join(""), calls: calls.map((c) => c.name) };
  }

  async leave({ session, model, text }) {
    for await (const e of await this.client(session).messages.create({ model, max_tokens: 200000, messages: user(text), stream: true })) {
      if (e.type === "content_block_delta") break;
    }
  }
}

class OllamaDriver {
  name = "ollama";
  native = "ollama";
  odd = "options.num_gpu";

  constructor(sdk, error) {
    this.sdk = sdk;
    // In a stream it throws plain errors.
    this.errors = { 0: Error, 400: error, 401: error, 404: error, 429: error, 502: error };
  }

  client(session, key = WORLD.key) {
    return new this.sdk.Ollama({ host: WORLD.url, headers: { Authorization: "Bearer " + key, ...headersOf(session) } });
  }

  async call({ session, model, text, stream, key, image, think, schema, odd, limit }) {
    const message = { role: "user", content: text }, more = {};
    if (image) message.images = [image.split(",")[1]];
    if (think) more.think = true;
    if (schema) more.format = PERSON;
    if (odd) more.options = { num_gpu: 1 };
    if (limit) more.options = { num_predict: limit };
    const ask = { model, messages: [message], ...more };
    const parts = [];
    if (stream) {
      for await (const part of await this.client(session, key).chat({ ...ask, stream })) parts.push(part);
    } else {
      parts.push(await this.client(session, key).chat(ask));
    }
    const last = parts.at(-1);
    same([last.done, last.done_reason], [true, limit ? "length" : "stop"]);
    const all = parts.map((p) => p.message.content ?? "").join("");
    return {
      text: all, thought: parts.map((p) => p.message.thinking ?? "").join(""), value: schema && JSON.parse(all),
      input: last.prompt_eval_count, output: last.eval_count,
    };
  }

  async tools({ session, model, text, stream }) {
    const tools = [{ type: "function", function: { name: "get_weather", description: "the weather", parameters: WEATHER } }];
    const client = this.client(session);
    const messages = user(text), calls = [];
    const take = (part) => {
      if (!part.message.tool_calls) return;
      messages.push(part.message);
      calls.push(...part.message.tool_calls);
    };
    if (stream) for await (const part of await client.chat({ model, messages, tools, stream })) take(part);
    else take(await client.chat({ model, messages, tools }));
    for (const c of calls) {
      holds(c.function.arguments.city, c);
      messages.push({ role: "tool", tool_name: c.function.name, content: "sunny" });
    }
    const end = await client.chat({ model, messages, tools });
    return { text: end.message.content, calls: calls.map((c) => c.function.name) };
  }

  async leave({ session, model, text }) {
    const stream = await this.client(session).chat({ model, messages: user(text), stream: true });
    try {
      for await (const _ of stream) stream.abort();
    } catch (e) {
      same(e.name, "AbortError");
    }
  }
}

const [openai6, openai7, anthropic, anthropicOld, ollama] = await Promise.all(["openai6", "openai", "@anthropic-ai/sdk", "anthropic0", "ollama"].map(load));
const today = new Messages(anthropic, "anthropic", "authorization", "2026-10-21");
const before = new Messages(anthropicOld, "anthropic-old", "x-api-key", "2023-06-01");

// The package keeps the class of its errors to itself: one that it throws tells.
const refused = await new ollama.Ollama({ host: WORLD.url }).list().catch((e) => e);

export const drivers = [
  new Chat(openai6, "openai6-chat"), new Responses(openai6, "openai6-responses"), new Chat(openai7, "openai7-chat"), new Responses(openai7, "openai7-responses"),
  today, before, new OllamaDriver(ollama, refused.constructor),
];

export const extra = [];
for (const d of [today, before]) {
  for (const kind of ["openai", "ollama", "anthropic"]) {
    extra.push([`${d.name}/${kind}/count_tokens`, async () => {
      const { input_tokens: n } = await d.client("count").messages.countTokens({ model: `${kind}-model`, messages: user("hello ".repeat(40)) });
      holds(n > 20, `${n} tokens`);
    }]);
  }
}
for (const kind of ["openai", "ollama", "anthropic"]) {
  extra.push([`ollama/${kind}/generate`, async () => {
    const client = new ollama.Ollama({ host: `${WORLD.url}/k/${WORLD.key}` }); // a client that sends no header
    same((await client.generate({ model: `${kind}-model`, prompt: "sim:tokens=3 hello" })).response, "hello t1 t2");
  }]);
}
extra.push(["ollama/documents", async () => {
  const client = new ollama.Ollama({ host: `${WORLD.url}/k/${WORLD.key}` });
  const { models } = await client.list();
  for (const kind of ["openai", "ollama", "anthropic"]) {
    holds(models.some((m) => m.model === `${kind}-model` || m.model === `${kind}-model:latest`), models.slice(0, 9));
    holds((await client.show({ model: `${kind}-model` })).capabilities.includes("completion"), kind);
  }
  holds((await client.ps()).models, "no list");
}]);
