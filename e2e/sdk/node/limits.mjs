// What the official client for Node.js makes of a key's limits.

import { WORLD, check, client, holds, openai, raised, refusedSoFar, runAll, same } from "./world.mjs";

const ask = (c, more = {}) =>
  c.chat.completions.create({ model: "sim-small", messages: [{ role: "user", content: "hello" }], ...more });

const limited = (c, more) => raised(openai.RateLimitError, () => ask(c, more));

check("limits/requests", async () => {
  const c = client({ key: WORLD.keys.rpm, maxRetries: 0 });
  for (const left of ["2", "1", "0"]) {
    const { response } = await ask(c).withResponse();
    same(response.headers.get("x-ratelimit-remaining-requests"), left);
  }
  const e = await limited(c);
  same([e.status, e.code, e.type], [429, "rate_limit_exceeded", "rate_limit_error"]);
  holds(e.message.includes("3 requests per minute"), e.message);
  const wait = Number(e.headers.get("retry-after"));
  holds(wait >= 1 && wait <= 20, `Retry-After ${wait}`);
});

check("limits/retry_waits", async () => {
  let told, took, refused = 0;
  // Where none is refused a slow machine took so long that there was no need to wait.
  for (let i = 0; i < 10 && refused === 0; i++) {
    let began;
    [told, began] = await spent(client({ key: WORLD.keys.rpm20, maxRetries: 0 }));
    const before = await refusedSoFar();
    await ask(client({ key: WORLD.keys.rpm20, maxRetries: 2 }));
    took = (performance.now() - began) / 1000;
    refused = (await refusedSoFar()) - before;
  }
  holds(took > told - 1.2, `told ${told}, took ${took}`);
  same(refused, 1, "requests that were refused");
  return `told ${told} s, took ${took.toFixed(1)} s`;
});

/** Asks until the limit is reached; returns the refusal's Retry-After, and when that request began. */
async function spent(c) {
  for (let i = 0; i < 200; i++) {
    const began = performance.now();
    try {
      await ask(c);
    } catch (e) {
      if (!(e instanceof openai.RateLimitError)) throw e;
      return [Number(e.headers.get("retry-after")), began];
    }
  }
  throw new Error("two hundred requests were served");
}

check("limits/concurrency", async () => {
  const c = client({ key: WORLD.keys.concurrency, maxRetries: 0 });
  const stream = await ask(c, { stream: true, user: "sim:tokens=100000,itl=20ms" });
  for await (const _ of stream) {
    const e = await limited(c);
    holds(e.message.includes("1 concurrent request."), e.message);
    break;
  }
  await ask(client({ key: WORLD.keys.concurrency, maxRetries: 5 }));
});

check("limits/budget", async () => {
  const before = await refusedSoFar();
  const e = await limited(client({ key: WORLD.keys.budget, maxRetries: 4 }), { max_tokens: 50 });
  same(e.code, "insufficient_quota");
  holds(e.message.includes("budget of 5 tokens per month"), e.message);
  same((await refusedSoFar()) - before, 1, "requests that were refused");
});

await runAll();
