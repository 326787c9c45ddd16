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

/** What no other request orders: the simulator fails the first with the same order. */
const order = (number, n, more) => `sim:status=429,${more},fail_first=1,tokens=${3 + WORLD.failing_from + 4 * number + n}`;

const CASES = {
  async tells(d, kind, session, model, number) {
    const say = (n) => `${order(number, n, "retry_after=1")} ${session}`;
    const p = patient(d);
    await refused(d, session, model + "-solo", say(0), false);
    await refused(d, session, model + "-solo", say(1), true);
    const got = await (p ?? d).call({ session, model: model + "-solo", text: p ? say(2) : `sim:tokens=3 ${session}` });
    same(got.text.split(" ")[0], session);
    const at = (await seen(session, kind)).map((r) => Date.parse(r.started));
    same(at.length, p ? 4 : 3, "requests that reached the provider");
    for (let i = 1; i < at.length; i++) holds(at[i] - at[i - 1] > 900, `the provider was asked again after ${at[i] - at[i - 1]} ms`);
  },
  async takes_over(d, kind, session, model, number) {
    const text = `${order(number, 3, "retry_after=60")} ${session}`;
    for (const stream of [true, false, true]) {
      const got = await d.call({ session, model: model + "-pair", text, stream });
      holds(got.text.startsWith(`${session} t1 t2`), got);
    }
    same((await seen(session, kind)).length, 4, "requests that reached a provider");
  },
};

const wanted = ["openai7-chat", "openai7-responses", "anthropic", "ollama"].map((name) => drivers.find((d) => d.name === name));
const running = [];
wanted.forEach((d, i) => {
  for (const [j, kind] of WORLD.kinds[i].entries()) {
    for (const [name, f] of Object.entries(CASES)) {
      const full = `${d.name}/${kind}/${name}`;
      running.push(f(d, kind, `${WORLD.script}/${full}`, `node-${i}-${kind}`, 2 * i + j).then(
        () => say({ name: full, ok: true, detail: "" }),
        (e) => say({ name: full, ok: false, detail: e?.stack ?? String(e) }),
      ));
    }
  }
});
await Promise.all(running);
