// Drivers of the Vercel AI SDK with @ai-sdk/openai (both interfaces), @ai-sdk/openai-compatible and @ai-sdk/anthropic.

import { PERSON, WEATHER, WORLD, load, same } from "./matrixworld.mjs";

const [ai, openai, compatible, anthropic] = await Promise.all(["ai", "@ai-sdk/openai", "@ai-sdk/openai-compatible", "@ai-sdk/anthropic"].map(load));

// Its warnings about models that it does not know are not for the Go test.
globalThis.AI_SDK_LOG_WARNINGS = false;

class Vercel {
  constructor(fields) {
    Object.assign(this, fields);
    this.errors = { 0: ai.APICallError, 400: ai.APICallError, 401: ai.APICallError, 404: ai.APICallError, 429: ai.APICallError, 502: ai.APICallError };
  }

  /** Errors in streams are of classes that the SDK keeps to itself. */
  owns(e) {
    return e instanceof Error && (e.name.startsWith("AI_") || e.constructor === Error);
  }

  ask({ session, model, text, key = WORLD.key, image, think, schema, odd, limit }) {
    const content = [{ type: "text", text }];
    if (image) content.push({ type: "image", image: image.split(",")[1], mediaType: "image/png" });
    const options = { ...(think && this.think), ...(odd && this.oddOptions) };
    return {
      model: this.model(model, key, odd), messages: [{ role: "user", content }], maxRetries: 0, headers: { "X-Session-Id": session },
      ...(limit && { maxOutputTokens: limit }), ...(schema && { output: ai.Output.object({ schema: ai.jsonSchema(PERSON) }) }),
      ...(Object.keys(options).length && { providerOptions: { [this.options]: options } }),
    };
  }

  async call(asked) {
    const ask = this.ask(asked);
    let a;
    if (asked.stream) {
      let failure;
      a = ai.streamText({ ...ask, onError: ({ error }) => (failure = error) });
      const [text, usage, thought, finish] = await this.whole(a, () => failure);
      same(finish, asked.limit ? "length" : "stop");
      return { text, thought, input: usage.inputTokens, output: usage.outputTokens };
    }
    a = await ai.generateText(ask);
    same(a.finishReason, asked.limit ? "length" : "stop");
    return { text: a.text, thought: a.reasoningText ?? "", value: asked.schema && a.output, input: a.usage.inputTokens, output: a.usage.outputTokens };
  }

  /** All of a stream, or the error that it ended with. */
  async whole(a, failure) {
    let text = "", thought = "";
    for await (const part of a.fullStream) {
      if (part.type === "text-delta") text += part.text;
      if (part.type === "reasoning-delta") thought += part.text;
      if (part.type === "error") throw part.error instanceof Error ? part.error : new Error(JSON.stringify(part.error));
    }
    if (failure()) throw failure();
    return [text, await a.totalUsage, thought, await a.finishReason];
  }

  async tools({ session, model, text, stream }) {
    const calls = [];
    const get_weather = ai.tool({
      description: "the weather", inputSchema: ai.jsonSchema(WEATHER),
      execute: async ({ city }) => {
        if (city) calls.push("get_weather");
        return "sunny";
      },
    });
    const ask = { ...this.ask({ session, model, text }), tools: { get_weather }, stopWhen: ai.stepCountIs(3) };
    if (!stream) return { text: (await ai.generateText(ask)).text, calls };
    let failure;
    const [end] = await this.whole(ai.streamText({ ...ask, onError: ({ error }) => (failure = error) }), () => failure);
    return { text: end, calls };
  }

  async leave({ session, model, text }) {
    const gone = new AbortController();
    const a = ai.streamText({ ...this.ask({ session, model, text, limit: 200000 }), abortSignal: gone.signal, onError: () => {} });
    try {
      for await (const part of a.fullStream) if (part.type === "text-delta") gone.abort();
    } catch (e) {
      same(e.name, "AbortError");
    }
  }
}

const url = WORLD.url + "/v1";

export const drivers = [
  new Vercel({
    name: "vercel-openai-chat", native: "openai", options: "openai", odd: "logit_bias", oddOptions: { logitBias: { 1: 5 } },
    lacks: { reasoning: "it does not read reasoning_content" },
    model: (id, apiKey) => openai.createOpenAI({ baseURL: url, apiKey }).chat(id),
  }),
  new Vercel({
    name: "vercel-openai-responses", native: "", options: "openai", odd: "previous_response_id", oddOptions: { previousResponseId: "resp_1" },
    think: { reasoningEffort: "low", reasoningSummary: "auto", forceReasoning: true },
    model: (id, apiKey) => openai.createOpenAI({ baseURL: url, apiKey }).responses(id),
  }),
  new Vercel({
    name: "vercel-compatible", native: "openai", options: "iop", odd: "logit_bias", oddOptions: { logit_bias: { 1: 5 } }, think: { reasoningEffort: "low" },
    model: (id, apiKey) => compatible.createOpenAICompatible({ name: "iop", baseURL: url, apiKey, includeUsage: true, supportsStructuredOutputs: true })(id),
  }),
  new Vercel({
    name: "vercel-anthropic", native: "anthropic", options: "anthropic", odd: "container", oddOptions: { container: { id: "container_1" } },
    // It asks for structured output by a tool that must be called, of models whose names it does not know.
    refused: { ollama: { structured: "tool_choice" } },
    think: { thinking: { type: "enabled", budgetTokens: 1024 } },
    model: (id, apiKey) => anthropic.createAnthropic({ baseURL: url, apiKey })(id),
  }),
];
