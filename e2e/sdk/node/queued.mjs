// A stream of the official packages that has to queue: its head comes while it waits, and what the queue says is no event.

import { load, WORLD } from "./matrixworld.mjs";

const text = "sim:tokens=4 hello", messages = [{ role: "user", content: text }];
const options = { apiKey: WORLD.key, timeout: 60_000, maxRetries: 0 };

async function read(request, piece) {
  const { data, response } = await request.withResponse();
  if (response.headers.get("x-iop-queue-position") !== "1" || response.headers.get("x-iop-queue-ms") !== null) throw new Error("headers of a stream that waits");
  process.stdout.write("head\n");
  let got = "";
  for await (const event of data) got += piece(event) ?? "";
  return got;
}

const kinds = {
  async chat() {
    const client = new (await load("openai")).OpenAI({ ...options, baseURL: WORLD.url + "/v1" });
    return read(client.chat.completions.create({ model: "chat", messages, stream: true }), (e) => e.choices[0]?.delta?.content);
  },
  async responses() {
    const client = new (await load("openai")).OpenAI({ ...options, baseURL: WORLD.url + "/v1" });
    return read(client.responses.create({ model: "chat", input: text, stream: true }), (e) => (e.type === "response.output_text.delta" ? e.delta : ""));
  },
  async messages() {
    const client = new (await load("@anthropic-ai/sdk")).Anthropic({ ...options, baseURL: WORLD.url });
    return read(client.messages.create({ model: "chat", max_tokens: 50, messages, stream: true }), (e) => e.delta?.text);
  },
};

process.stdout.write("ready\n");
const got = await kinds[WORLD.kind]();
if (!got.endsWith("t1 t2 t3")) throw new Error(`it said ${got}`);
