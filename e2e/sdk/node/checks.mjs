// The official openai package against the real stack. Run by the Go test; see world.mjs for how it reports.

import zlib from "node:zlib";
import { SDK, TIMEOUT, WORLD, check, client, collect, control, edgeRequests, eventually, failing, helpers, holds, openai, raised, runAll, same, say, seen, user, zod } from "./world.mjs";

const [CHAT, REASON, EMBED, AUDIO, IMAGE] = ["sim-small", "sim-reason", "sim-embed", "sim-audio", "sim-image"];

const parameters = {
  type: "object",
  required: ["city", "unit"],
  additionalProperties: false,
  properties: { city: { type: "string" }, unit: { enum: ["celsius", "kelvin"] } },
};
const WEATHER = { type: "function", function: { name: "get_weather", parameters, strict: true } };
const Person = zod.z.object({ name: zod.z.string(), age: zod.z.number().int() });

const ask = ({ c = client(), model = CHAT, text = "hello", knobs = "tokens=3", ...more } = {}, options = {}) =>
  c.chat.completions.create({ model, messages: user(text), user: "sim:" + knobs, ...more }, options);

const textOf = (chunks, index = 0) =>
  chunks.flatMap((c) => c.choices).filter((c) => c.index === index).map((c) => c.delta?.content ?? c.text ?? "").join("");

// ---- chat

check("chat/unary", async () => {
  const a = await ask({ text: "hello there", knobs: "tokens=5" });
  same(a.choices[0].message.content, "hello there t2 t3 t4");
  same([a.choices[0].finish_reason, a.usage.completion_tokens], ["stop", 5]);
  holds(a._request_id?.startsWith("req_"), `_request_id ${a._request_id}`);
});

check("chat/stream", async () => {
  const want = (await ask({ text: "hi", knobs: "tokens=40,text=mix" })).choices[0].message.content;
  const chunks = await collect(ask({ text: "hi", knobs: "tokens=40,text=mix,itl=5ms", stream: true }));
  same(textOf(chunks), want);
  same(chunks.map((c) => c.choices[0].finish_reason).filter(Boolean), ["stop"]);
  same(new Set(chunks.map((c) => c.id)).size, 1, "ids");
});

check("chat/stream_of_two", async () => {
  const chunks = await collect(ask({ text: "hi", n: 2, knobs: "tokens=6,text=emoji", stream: true }));
  same(textOf(chunks, 0), textOf(chunks, 1));
  holds(textOf(chunks, 0).startsWith("hi"), textOf(chunks));
});

check("chat/stream_in_pieces", async () => {
  const want = (await ask({ text: "hi", knobs: "tokens=12,text=cjk" })).choices[0].message.content;
  for (const knobs of ["split=3", "crlf", "comments", "nospace", "done=none", "done=unterminated"]) {
    same(textOf(await collect(ask({ text: "hi", knobs: "tokens=12,text=cjk," + knobs, stream: true }))), want, knobs);
  }
});

check("chat/stream_helper", async () => {
  const s = client().chat.completions.stream({ model: CHAT, messages: user("hello"), user: "sim:tokens=4" });
  let pieces = "";
  s.on("content", (delta) => (pieces += delta));
  same(await s.finalContent(), "hello t1 t2 t3");
  same(pieces, "hello t1 t2 t3");
});

check("chat/reasoning", async () => {
  const a = await ask({ model: REASON, text: "why" });
  same(a.choices[0].message.reasoning_content, "Let me think.........");
  const chunks = await collect(ask({ model: REASON, text: "why", stream: true }));
  same(chunks.map((c) => c.choices[0].delta.reasoning_content ?? "").join(""), a.choices[0].message.reasoning_content);
  same(textOf(chunks), a.choices[0].message.content);
});

check("chat/usage_asked", async () => {
  const chunks = await collect(ask({ knobs: "tokens=7", stream: true, stream_options: { include_usage: true } }));
  same(chunks.slice(-2).map((c) => c.choices.length), [1, 0], "choices of the last chunks");
  same(chunks.at(-1).usage.completion_tokens, 7);
  same(chunks.slice(0, -1).filter((c) => c.usage !== null), []);
});

check("chat/usage_not_asked", async () => {
  for (const knobs of ["", ",usage=refuse", ",usage=never"]) {
    const chunks = await collect(ask({ text: `unasked-${SDK}${knobs}`, knobs: "tokens=7" + knobs, stream: true }));
    same(chunks.filter((c) => c.choices.length !== 1 || c.usage), [], "chunks with usage, or without a choice");
  }
  holds((await seen(`unasked-${SDK}`))[0].body.replaceAll(" ", "").includes('"include_usage":true'), "the provider was not asked for the usage");
});

check("chat/tools", async () => {
  const a = await ask({ text: "call get_weather", knobs: "", tools: [WEATHER] });
  same(a.choices[0].finish_reason, "tool_calls");
  const call = a.choices[0].message.tool_calls[0];
  same([call.function.name, JSON.parse(call.function.arguments).unit], ["get_weather", "celsius"]);
  const messages = [...user("call get_weather"), a.choices[0].message, { role: "tool", tool_call_id: call.id, content: "sunny" }];
  const b = await client().chat.completions.create({ model: CHAT, messages, tools: [WEATHER] });
  holds(b.choices[0].message.content, "no answer after the tool's");
});

check("chat/tools_stream", async () => {
  const args = { text: "call get_weather", tools: [WEATHER], knobs: "tools=2" };
  const want = (await ask(args)).choices[0].message.tool_calls;
  const calls = [];
  let finish;
  for await (const chunk of await ask({ ...args, stream: true })) {
    finish = chunk.choices[0].finish_reason ?? finish;
    for (const d of chunk.choices[0].delta.tool_calls ?? []) {
      const call = (calls[d.index] ??= { id: "", name: "", arguments: "", pieces: 0 });
      call.id += d.id ?? "";
      call.name += d.function.name ?? "";
      call.arguments += d.function.arguments ?? "";
      call.pieces++;
    }
  }
  same(finish, "tool_calls");
  same(calls.map((c) => [c.name, c.arguments]), want.map((c) => [c.function.name, c.function.arguments]));
  holds(calls.length === 2 && calls.every((c) => c.id && c.pieces > 2), calls);
});

check("chat/structured", async () => {
  const args = { model: CHAT, messages: user("who"), response_format: helpers.zodResponseFormat(Person, "person") };
  const a = await client().chat.completions.parse(args);
  Person.parse(a.choices[0].message.parsed);
  same((await client().chat.completions.stream(args).finalChatCompletion()).choices[0].message.parsed, a.choices[0].message.parsed);
});

// ---- the other endpoints

check("completions", async () => {
  const args = { model: CHAT, prompt: ["a", "b c"], user: "sim:tokens=4" };
  const a = await client().completions.create(args);
  same(a.choices.map((c) => c.text.split(" ").length), [4, 4], "tokens");
  const chunks = await collect(client().completions.create({ ...args, stream: true }));
  same([textOf(chunks, 0), textOf(chunks, 1)], a.choices.map((c) => c.text), "streamed");
});

check("embeddings", async () => {
  const args = { model: EMBED, input: ["a", "b", `emb-${SDK}`], dimensions: 16 };
  const byDefault = await client().embeddings.create(args);
  holds((await seen(`emb-${SDK}`))[0].body.replaceAll(" ", "").includes('"encoding_format":"base64"'), "the SDK's default is not base64");
  const floats = await client().embeddings.create({ ...args, encoding_format: "float" });
  same(byDefault.data.map((d) => d.embedding.length), [16, 16, 16]);
  byDefault.data.forEach((d, i) =>
    d.embedding.forEach((v, k) => holds(Math.abs(v - floats.data[i].embedding[k]) < 1e-6, "base64 and float differ")),
  );
  const raw = await client().embeddings.create({ ...args, encoding_format: "base64" });
  holds(typeof raw.data[0].embedding === "string" && Buffer.from(raw.data[0].embedding, "base64").length === 64, raw.data[0]);
});

check("models", async () => {
  const ids = (await collect(client().models.list())).map((m) => m.id);
  same(ids.sort(), [...WORLD.models].sort());
  for (const name of WORLD.models) same((await client().models.retrieve(name)).id, name);
  const e = await raised(openai.NotFoundError, () => client().models.retrieve("nobody/at:all"));
  same(e.code, "model_not_found");
});

check("responses/unary", async () => {
  const a = await client().responses.create({ model: REASON, input: "hello there", instructions: "be brief", user: "sim:tokens=4" });
  same([a.output_text, a.status, a.usage.output_tokens], ["hello there t2 t3", "completed", 8]);
  holds(a._request_id.startsWith("req_"), a._request_id);
});

check("responses/stream", async () => {
  const events = await collect(client().responses.create({ model: REASON, input: "hello there", user: "sim:tokens=4", stream: true }));
  same(events.map((e) => e.sequence_number), events.map((_, i) => i), "sequence numbers");
  const kinds = events.map((e) => e.type);
  same([kinds[0], kinds.at(-1)], ["response.created", "response.completed"]);
  holds(kinds.includes("response.reasoning_summary_text.delta"), kinds);
  same(events.filter((e) => e.type === "response.output_text.delta").map((e) => e.delta).join(""), "hello there t2 t3");
  same(events.at(-1).response.output.at(-1).content[0].text, "hello there t2 t3");
  const cut = await collect(client().responses.create({ model: CHAT, input: "hello there", max_output_tokens: 2, stream: true }));
  same(cut.at(-1).type, "response.incomplete");
});

check("responses/tools", async () => {
  const args = { model: CHAT, input: "use get_weather", tools: [{ type: "function", name: "get_weather", parameters, strict: true }] };
  const a = await client().responses.create(args);
  const events = await collect(client().responses.create({ ...args, stream: true }));
  same(events.filter((e) => e.type === "response.function_call_arguments.delta").map((e) => e.delta).join(""), a.output[0].arguments);
  same(a.output[0].name, "get_weather");
});

check("responses/structured", async () => {
  const a = await client().responses.parse({ model: CHAT, input: "who", text: { format: helpers.zodTextFormat(Person, "person") } });
  Person.parse(a.output_parsed);
});

check("moderations", async () => {
  const a = await client().moderations.create({ model: CHAT, input: ["fine", "flag this"] });
  same(a.results.map((r) => r.flagged), [false, true]);
});

/** A WAV file of half a second. */
function sound() {
  const data = Buffer.alloc(24000, 7);
  const head = Buffer.alloc(44);
  head.write("RIFF", 0).toString();
  head.writeUInt32LE(36 + data.length, 4);
  head.write("WAVEfmt ", 8);
  head.writeUInt32LE(16, 16);
  head.writeUInt16LE(1, 20);
  head.writeUInt16LE(1, 22);
  head.writeUInt32LE(24000, 24);
  head.writeUInt32LE(48000, 28);
  head.writeUInt16LE(2, 32);
  head.writeUInt16LE(16, 34);
  head.write("data", 36);
  head.writeUInt32LE(data.length, 40);
  return Buffer.concat([head, data]);
}

check("audio/transcription", async () => {
  const args = async () => ({ model: AUDIO, file: await openai.toFile(sound(), "one.wav", { type: "audio/wav" }) });
  const a = await client().audio.transcriptions.create(await args());
  holds(a.text.startsWith("Heard 24044 bytes of one.wav:"), a.text);
  const events = await collect(client().audio.transcriptions.create({ ...(await args()), stream: true }));
  same(events.map((e) => e.delta ?? "").join(""), a.text);
  same([events.at(-1).type, events.at(-1).text], ["transcript.text.done", a.text]);
  same((await client().audio.transcriptions.create({ ...(await args()), response_format: "text" })).trim(), a.text);
  same((await client().audio.translations.create(await args())).text, a.text);
});

check("audio/speech", async () => {
  const res = await client().audio.speech.create({ model: AUDIO, voice: "alloy", input: "say something" });
  const wav = Buffer.from(await res.arrayBuffer());
  same([wav.toString("latin1", 0, 4), wav.readUInt32LE(4), res.headers.get("content-type")], ["RIFF", wav.length - 8, "audio/wav"]);
});

/** Check a PNG's signature and its chunks, and decompress its pixels. */
function lookAtPNG(b64) {
  const data = Buffer.from(b64, "base64");
  same(data.toString("hex", 0, 8), "89504e470d0a1a0a");
  const pixels = [];
  let at = 8;
  let kind;
  while (at < data.length) {
    const n = data.readUInt32BE(at);
    kind = data.toString("latin1", at + 4, at + 8);
    if (kind === "IDAT") pixels.push(data.subarray(at + 8, at + 8 + n));
    at += 12 + n;
  }
  same([kind, at], ["IEND", data.length]);
  holds(zlib.inflateSync(Buffer.concat(pixels)).length > 0, "no pixels");
}

check("images/generate", async () => {
  const a = await client().images.generate({ model: IMAGE, prompt: "a cat", n: 2 });
  a.data.forEach((d) => lookAtPNG(d.b64_json));
  const events = await collect(client().images.generate({ model: IMAGE, prompt: "a cat", stream: true, partial_images: 2 }));
  events.forEach((e) => lookAtPNG(e.b64_json));
  same(events.map((e) => e.type), ["image_generation.partial_image", "image_generation.partial_image", "image_generation.completed"]);
});

check("images/edit", async () => {
  const png = Buffer.from((await client().images.generate({ model: IMAGE, prompt: "a cat" })).data[0].b64_json, "base64");
  const image = [await openai.toFile(png, "a.png", { type: "image/png" }), await openai.toFile(png, "b.png", { type: "image/png" })];
  lookAtPNG((await client().images.edit({ model: IMAGE, prompt: "a dog", image })).data[0].b64_json);
});

// ---- errors: each status in the SDK's own class, and tried as often as it should be

/** Check an error that the Edge itself answers with: its class, its fields, and that the SDK asked once. */
async function refused(kind, status, code, f, metrics) {
  const before = await edgeRequests(metrics);
  const e = await raised(kind, f);
  same([e.status, e.code], [status, code], e.message);
  holds(e.requestID?.startsWith("req_"), `requestID ${e.requestID}`);
  holds(e.error?.message && e.type, `body ${JSON.stringify(e.error)}`);
  await eventually("the request is counted", async () => (await edgeRequests(metrics)) > before);
  same((await edgeRequests(metrics)) - before, 1, "attempts");
  return e;
}

check("errors/401", async () => {
  for (const name of ["wrong", "revoked", "expired", "malformed"]) {
    const key = WORLD.keys[name];
    const e = await refused(openai.AuthenticationError, 401, "invalid_api_key", () => ask({ c: client({ key }) }));
    holds(!e.message.includes(key), "the error repeats the key");
    same([e.headers.get("www-authenticate"), e.headers.get("x-should-retry")], ["Bearer", "false"]);
  }
});

check("errors/403", async () => {
  const c = client({ key: WORLD.keys.narrow });
  const e = await refused(openai.PermissionDeniedError, 403, "model_not_allowed", () => ask({ c }));
  same(e.param, "model");
  holds((await c.embeddings.create({ model: EMBED, input: "a" })).data.length, "the key's own model");
});

check("errors/404", async () => {
  const e = await refused(openai.NotFoundError, 404, "model_not_found", () => ask({ model: "nobody/at:all" }));
  same(e.param, "model");
  same((await raised(openai.NotFoundError, () => client().files.list())).code, "unknown_path");
});

check("errors/400", async () => {
  const e = await refused(openai.BadRequestError, 400, "invalid_request_error", () => ask({ stream_options: "all" }));
  same(e.param, "stream_options");
});

check("errors/413", async () => {
  const c = client({ baseURL: WORLD.tight.base_url, key: WORLD.tight.key });
  const e = await refused(openai.APIError, 413, "request_too_large", () => ask({ c, text: "x".repeat(300_000) }), WORLD.tight.metrics);
  holds(e.message.includes("256 KiB"), `the limit is not named: ${e.message}`);
});

check("errors/415", async () => {
  await refused(openai.APIError, 415, "unsupported_media_type", () => ask({}, { headers: { "Content-Encoding": "gzip" } }));
});

// What the provider answers, what the client gets, and how often the SDK asks.
const PROVIDER = [
  [400, 400, openai.BadRequestError, 1],
  [401, 502, openai.InternalServerError, 1],
  [403, 502, openai.InternalServerError, 1],
  [404, 404, openai.NotFoundError, 1],
  [408, 408, openai.APIError, 3],
  [409, 409, openai.ConflictError, 3],
  [413, 413, openai.APIError, 1],
  [422, 422, openai.UnprocessableEntityError, 1],
  [429, 429, openai.RateLimitError, 3],
  [500, 502, openai.InternalServerError, 3],
  [502, 502, openai.InternalServerError, 3],
  [503, 503, openai.InternalServerError, 3],
  [504, 502, openai.InternalServerError, 3],
  [529, 503, openai.InternalServerError, 3],
];

async function fromProvider([status, told, kind, attempts], shape) {
  const marker = `provider-${SDK}-${status}-${shape}`;
  const e = await raised(kind, () => ask({ model: failing(), text: marker, knobs: `status=${status},error_shape=${shape}` }));
  same(e.status, told);
  holds(e.error?.message && e.type, `body ${JSON.stringify(e.error)}`);
  holds(e.requestID?.startsWith("req_"), `requestID ${e.requestID}`);
  same((await seen(marker)).length, attempts, `provider's ${status}: attempts`);
  if (told === 502 && attempts === 1) same([e.code, e.headers.get("x-should-retry")], ["provider_error", "false"]);
}

check("errors/provider", async () => {
  // All at once: most of the time passes in the SDK's waits between two attempts.
  const rows = PROVIDER.map((row) => [row, "openai"]);
  for (const row of PROVIDER.filter(([status]) => [400, 422, 500].includes(status))) {
    for (const shape of ["string", "detail", "flat", "html", "empty"]) rows.push([row, shape]);
  }
  const faults = [];
  await Promise.all(rows.map(([row, shape]) => fromProvider(row, shape).catch((e) => faults.push(`${row[0]} (${shape}): ${e.message}`))));
  same(faults, []);
});

check("retries/then_success", async () => {
  await control("POST", WORLD.sim + "/sim/config", { status: 503, times: 2 });
  const a = await ask({ text: `mended-${SDK}` });
  same(a.choices[0].message.content, `mended-${SDK} t1 t2`);
  same((await seen(`mended-${SDK}`)).length, 3, "attempts, the last of which the model answered");
});

check("retries/retry_after", async () => {
  await control("POST", WORLD.sim + "/sim/config", { status: 429, retry_after: "2", times: 1 });
  same((await ask({ text: `later-${SDK}` })).choices[0].message.content, `later-${SDK} t1 t2`);
  const [first, second] = await seen(`later-${SDK}`);
  const waited = (Date.parse(second.started) - Date.parse(first.started)) / 1000;
  holds(waited >= 1.9, `came again after ${waited} s, although Retry-After said 2`);
  return `waited ${waited} s`;
});

check("errors/waiting", async () => {
  // A full queue, a wait that is too long, a provider that hangs, no room for bodies: each in its class.
  const { base_url: baseURL, key, sim, metrics } = WORLD.tight;
  const c = client({ baseURL, key, maxRetries: 0 });
  const call = async (name, kind, knobs = "tokens=3", fill = 0) =>
    raised(kind, () => ask({ c, text: `${name}-${SDK} ${"x".repeat(fill)}`, knobs })).catch((e) => e);
  const hung = call("hung", openai.InternalServerError, "hang", 200_000);
  await eventually("the provider has the request", async () => (await seen(`hung-${SDK}`, sim)).length);
  const queued = call("queued", openai.InternalServerError);
  await eventually("one waits", async () => (await control("GET", metrics)).includes("iop_queued 1"));
  const full = await call("full", openai.RateLimitError);
  const heavy = await call("heavy", openai.InternalServerError, "tokens=3", 100_000);
  const all = [
    [full, 429, "queue_full"],
    [heavy, 503, "overloaded"],
    [await queued, 504, "queue_timeout"],
    [await hung, 504, "provider_timeout"],
  ];
  for (const [e, status, code] of all) {
    same([e.status, e.code], [status, code], e.message);
    holds(e.requestID.startsWith("req_"), e.requestID);
  }
  for (const e of [full, heavy]) {
    const wait = Number(e.headers.get("retry-after"));
    holds(wait >= 1 && wait <= 60, `Retry-After ${wait}`);
  }
});

// ---- the client goes away

/** A loaded machine may be late once; it is not late three times where nothing waits. */
async function bestOfThree(name, leave) {
  const took = [];
  for (let i = 0; i < 3; i++) {
    const marker = `${name}-${SDK}-${i}`;
    const left = await leave(marker);
    const [record] = await eventually("the provider sees that the client left", async () => {
      const all = (await seen(marker)).filter((r) => r.state === "cancelled");
      return all.length && all;
    });
    took.push(Date.parse(record.ended) - left);
    if (took.at(-1) <= 1000) return `cancelled ${took.at(-1)} ms later`;
  }
  throw new Error(`the provider went on for ${took} ms`);
}

check("abort/stream", async () =>
  bestOfThree("leave-stream", async (marker) => {
    const stream = await ask({ text: marker, knobs: "tokens=100000,itl=20ms", stream: true });
    let n = 0;
    let left;
    for await (const _ of stream) {
      if (++n === 3) {
        left = Date.now();
        stream.controller.abort();
      }
    }
    return left;
  }),
);

check("abort/unary", async () =>
  bestOfThree("leave-unary", async (marker) => {
    const control = new AbortController();
    const failed = raised(openai.APIUserAbortError, () => ask({ text: marker, knobs: "ttft=10m" }, { signal: control.signal }));
    await eventually("the provider has the request", async () => (await seen(marker)).length);
    const left = Date.now();
    control.abort();
    await failed;
    return left;
  }),
);

check("abort/timeout", async () => {
  const c = client({ maxRetries: 0, timeout: 3000 });
  await raised(openai.APIConnectionTimeoutError, () => ask({ c, text: `timeout-${SDK}`, knobs: "ttft=10m" }));
  await eventually("the provider sees that the client left", async () => (await seen(`timeout-${SDK}`)).some((r) => r.state === "cancelled"));
});

// ---- the provider breaks off: an error, never a short answer

/** Read a stream that must end with an error in its midst. */
async function broken(f) {
  const got = [];
  const e = await raised(openai.APIError, async () => {
    for await (const chunk of await f()) got.push(chunk);
    return `a stream that ended well after ${got.length} chunks`;
  });
  holds(got.length, "no chunk before the error");
  holds(!got.some((c) => c.choices?.[0]?.finish_reason || c.type === "response.completed"), "an end that nobody sent");
  holds(e.message, "no message");
  return e;
}

check("broken/stream", async () => {
  for (const fault of ["midclose", "midreset", "midabort", "error_event_mid", "llamacpp_error", "die"]) {
    const e = await broken(() => ask({ model: failing(), knobs: `tokens=20,itl=5ms,after=6,fault=${fault}`, stream: true }));
    holds(e.code, `${fault}: ${JSON.stringify(e.error)}`);
  }
});

check("broken/at_once", async () => {
  const c = client({ maxRetries: 0 });
  const ways = [];
  for (const fault of ["close", "reset", "empty200", "error_event_first"]) ways.push([fault, true]);
  for (const fault of ["close", "reset", "empty200", "midreset", "midabort"]) ways.push([fault, false]);
  for (const [fault, stream] of ways) {
    const e = await raised(openai.InternalServerError, () => ask({ c, model: failing(), knobs: `fault=${fault}`, stream }));
    same(e.status, 502, fault);
  }
});

check("broken/responses", async () => {
  for (const fault of ["midclose", "midreset", "error_event_mid"]) {
    await broken(() => client().responses.create({ model: failing(), input: "hello", user: `sim:tokens=20,after=6,fault=${fault}`, stream: true }));
  }
});

check("broken/node_killed", async () => {
  // The last check: there is no Node after it.
  const stream = await ask({ text: `killed-${SDK}`, knobs: "tokens=100000,itl=20ms", stream: true });
  const e = await broken(async function* () {
    let n = 0;
    for await (const chunk of stream) {
      yield chunk;
      if (++n === 3) say({ do: "kill-node" });
    }
  });
  same(e.code, "node_lost");
  return e.message;
});

await runAll();
