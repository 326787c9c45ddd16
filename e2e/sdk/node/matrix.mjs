// The client matrix with npm's packages: openai 6.x and 7.x, anthropic on both sides of its change of authorization, ollama, and
// the Vercel AI SDK with its providers. The cases are those of ../python/matrix.py, which says more about them.

import { drivers as officials, extra } from "./clients.mjs";
import { drivers as vercels } from "./vercel.mjs";
import { DATA_URL, KINDS, PNG, WORLD, eventually, failing, holds, raised, same, say, seen } from "./matrixworld.mjs";

function books(driver, kind, session, got, more = {}) {
  const line = { session, execution: driver.native === kind ? "raw" : "normalized", runs: got.length, outcome: "completed" };
  if (got.length && got.every((g) => g.input !== undefined)) {
    line.input = got.reduce((sum, g) => sum + g.input, 0);
    line.output = got.reduce((sum, g) => sum + g.output, 0);
  }
  say({ book: { ...line, ...more } });
}

const tools = (stream) => async (d, kind, session) => {
  const got = await d.tools({ session, model: `${kind}-model`, text: `${session} asks get_weather`, stream });
  same(got.calls, ["get_weather"]);
  holds(got.text, "no text after the tool's result");
  const requests = await seen(session + " asks", kind);
  same(requests.length, 2, "requests");
  holds(requests[1].body.includes("sunny"), requests[1].body);
  books(d, kind, session, [], { runs: 2 });
};

const broken = (knob) => async (d, kind, session) => {
  // What is no JSON is relayed as it is: the client throws what it throws of the provider itself.
  const relayed = knob.startsWith("malformed") && d.native === kind;
  const own = (e) => relayed || d.owns?.(e);
  const e = await raised(d.errors[0], () => d.call({ session, model: failing(kind), text: `sim:tokens=9,${knob} hello`, stream: true }), own);
  holds(e.message, "an error without a word");
  books(d, kind, session, [], { runs: 1, outcome: "failed" });
};

/** All that an error says. */
const words = (e) => [e.message, e.responseBody, JSON.stringify(e.error ?? ""), e.cause ? words(e.cause) : ""].join(" ");

const CASES = {
  async unary(d, kind, session) {
    const got = await d.call({ session, model: `${kind}-model`, text: "sim:tokens=5 hello there" });
    same(got.text, "hello there t2 t3 t4");
    books(d, kind, session, [got]);
  },
  async stream(d, kind, session) {
    const got = await d.call({ session, model: `${kind}-model`, text: "sim:tokens=9,text=mix hello there", stream: true });
    holds(got.text.startsWith("hello there") && got.text.length > 20, got.text);
    books(d, kind, session, [got]);
  },
  async limit(d, kind, session) {
    const got = await d.call({ session, model: `${kind}-model`, text: "sim:tokens=90 hello", limit: 7 });
    same(got.text, "hello t1 t2 t3 t4 t5 t6");
    books(d, kind, session, [got]);
  },
  tools: tools(false),
  tools_stream: tools(true),
  async structured(d, kind, session) {
    const got = await d.call({ session, model: `${kind}-model`, text: "who", schema: true });
    holds(typeof got.value?.name === "string" && Number.isInteger(got.value?.age), got.value);
    books(d, kind, session, [got]);
  },
  async image(d, kind, session) {
    const got = await d.call({ session, model: `${kind}-model`, text: `${session} sees`, image: DATA_URL });
    holds(got.text.startsWith(session + " sees"), got.text);
    holds((await seen(session + " sees", kind))[0].body.includes(PNG), "the provider got no image");
    books(d, kind, session, [got]);
  },
  async reasoning(d, kind, session) {
    const all = [];
    for (const stream of [false, true]) {
      const got = await d.call({ session, model: `${kind}-model`, text: "sim:tokens=3,reasoning=3 hello", stream, think: true });
      same([got.thought, got.text], ["Let me think......", "hello t1 t2"]);
      all.push(got);
    }
    books(d, kind, session, all);
  },
  async abort(d, kind, session) {
    await d.leave({ session, model: `${kind}-model`, text: `sim:tokens=100000,itl=20ms ${session} leaves` });
    await eventually("the provider was left", async () => (await seen(session + " leaves", kind))[0].state === "cancelled");
    books(d, kind, session, [], { runs: 1, outcome: "cancelled" });
  },
  async error_401(d, kind, session) {
    const e = await raised(d.errors[401], () => d.call({ session, model: `${kind}-model`, text: "hello", key: WORLD.wrong_key }));
    holds(/key/i.test(words(e)), words(e));
  },
  async error_404(d, kind, session) {
    const e = await raised(d.errors[404], () => d.call({ session, model: "nobody-has", text: "hello" }));
    holds(words(e).includes("nobody-has"), words(e));
  },
  async error_400(d, kind, session) {
    if (d.native === kind) return "the provider's own business: relayed as it is";
    const e = await raised(d.errors[400], () => d.call({ session, model: `${kind}-model`, text: "hello", odd: true }));
    holds(words(e).includes(d.odd), words(e));
  },
  // A key with one request a minute. A provider's own 429 would have all others wait as well.
  async error_429(d, kind, session) {
    const ask = () => d.call({ session, model: `${kind}-model`, text: "hello", key: WORLD.slow_key });
    const e = await raised(d.errors[429], async () => [await ask(), await ask()]);
    const headers = e.headers ?? e.responseHeaders;
    if (headers) {
      const wait = Number(headers.get?.("retry-after") ?? headers["retry-after"]);
      holds(wait >= 1 && wait <= 60, `Retry-After ${wait}`);
    }
  },
  async error_500(d, kind, session) {
    await raised(d.errors[502], () => d.call({ session, model: failing(kind), text: "sim:status=500 hello" }));
  },
  async error_overflow(d, kind, session) {
    for (const stream of [false, true]) {
      const e = await raised(d.errors[400], () => d.call({ session, model: failing(kind), text: "sim:overflow hello", stream }));
      holds(/context|too long/.test(words(e)), words(e));
    }
  },
  broken_died: broken("die=4"),
  broken_error: broken("error_event_mid=4"),
  broken_json: broken("malformed=4"),
  broken_end: broken("midclose=4"),
};

/** A case that must be refused by design, with an error that names what can't be carried. */
const refusal = (d, run, what) => async () => {
  const e = await raised(d.errors[400], run);
  holds(words(e).includes(what), words(e));
  return `refused: ${what}`;
};

const todo = [];
for (const d of [...officials, ...vercels]) {
  for (const kind of KINDS) {
    for (const [name, f] of Object.entries(CASES)) {
      if (d.lacks?.[name]) continue;
      const full = `${d.name}/${kind}/${name}`;
      const run = () => f(d, kind, `${WORLD.script}/${full}`);
      todo.push([full, d.refused?.[kind]?.[name] ? refusal(d, run, d.refused[kind][name]) : run]);
    }
  }
}
todo.push(...extra);
const wanted = todo.filter(([name]) => name.includes(WORLD.only));

async function work() {
  for (let next; (next = wanted.shift()); ) {
    const [name, f] = next;
    try {
      say({ name, ok: true, detail: String((await f()) ?? "") });
    } catch (e) {
      say({ name, ok: false, detail: e?.stack ?? String(e) });
    }
  }
}
await Promise.all([work(), work(), work(), work()]);
