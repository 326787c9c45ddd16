// What npm's official packages make of a provider's own 429 with Retry-After. The cases are those of ../python/rested.py.

import { drivers } from "./clients.mjs";
import { WORLD, holds, raised, same, say, seen } from "./matrixworld.mjs";

/** The driver with a client that tries as often again as it does by itself; none of one that never does. */
function patient(d) {
  if (d.name === "ollama") return undefined;
  const p = Object.create(d);
  p.client = (session, key) => d.client(session, key).withOptions({ maxRetries: 2 });
  return p;
}

/** Ask once, and be told of the provider's 429. */
async function refused(d, session, model, text, stream) {
  const e = await raised(d.errors[429], () => d.call({ session, model, text, stream }));
  same(e.status ?? e.status_code, 429);
  if (e.headers) same(e.headers.get("retry-after"), "1"); // the ollama package shows none
}

const CASES = {
  async tells(d, kind, session, model) {
    const order = (n) => `sim:status=429,retry_after=1,fail_first=1,tokens=${3 + n} ${session}`;
    const p = patient(d);
    await refused(d, session, model + "-solo", order(0), false);
    await refused(d, session, model + "-solo", order(1), true);
    const got = await (p ?? d).call({ session, model: model + "-solo", text: p ? order(2) : `sim:tokens=3 ${session}` });
    same(got.text.split(" ")[0], session);
    const at = (await seen(session, kind)).map((r) => Date.parse(r.started));
    same(at.length, p ? 4 : 3, "requests that reached the provider");
    for (let i = 1; i < at.length; i++) holds(at[i] - at[i - 1] > 900, `the provider was asked again after ${at[i] - at[i - 1]} ms`);
  },
  async takes_over(d, kind, session, model) {
    const text = `sim:status=429,retry_after=60,fail_first=1,tokens=3 ${session}`;
    for (const stream of [true, false, true]) {
      same((await d.call({ session, model: model + "-pair", text, stream })).text, `${session} t1 t2`);
    }
    same((await seen(session, kind)).length, 4, "requests that reached a provider");
  },
};

const wanted = ["openai7-chat", "openai7-responses", "anthropic", "ollama"].map((name) => drivers.find((d) => d.name === name));
const running = [];
wanted.forEach((d, i) => {
  for (const kind of WORLD.kinds[i]) {
    for (const [name, f] of Object.entries(CASES)) {
      const full = `${d.name}/${kind}/${name}`;
      running.push(f(d, kind, `${WORLD.script}/${full}`, `node-${i}-${kind}`).then(
        () => say({ name: full, ok: true, detail: "" }),
        (e) => say({ name: full, ok: false, detail: e?.stack ?? String(e) }),
      ));
    }
  }
});
await Promise.all(running);
