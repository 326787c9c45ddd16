// What the checks stand on: the world that the Go test describes, how a check reports, and how the provider is watched.

import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";

const [, , modules, world] = process.argv;
const require = createRequire(path.join(modules, "package.json"));

export const openai = require("openai");
export const zod = require("zod");
export const helpers = require("openai/helpers/zod");
export const WORLD = JSON.parse(world);

// Its major version tells one SDK's requests from another's.
const { version } = JSON.parse(fs.readFileSync(path.join(modules, "node_modules", "openai", "package.json"), "utf8"));
export const SDK = `node${version.split(".")[0]}`;

// Long enough for a loaded machine; nothing here waits for it to run out.
export const TIMEOUT = 60_000;

export const say = (line) => process.stdout.write(JSON.stringify(line) + "\n");

const checks = [];

/** Enter a check: a function that throws if what it looks at is wrong, and may return a text worth reading. */
export const check = (name, f) => checks.push([name, f]);

export async function runAll() {
  for (const [name, f] of checks) {
    try {
      say({ name, ok: true, detail: String((await f()) ?? "") });
    } catch (e) {
      say({ name, ok: false, detail: e?.stack ?? String(e) });
    }
  }
}

let failed = 0;

/** A model for a request that fails on purpose: one that fails too often is left alone for a while. */
export const failing = () => `failing-${failed++}`;

/** The official client as its users make it: a base URL and a key. */
export const client = ({ key = WORLD.key, baseURL = WORLD.base_url, ...options } = {}) =>
  new openai.OpenAI({ baseURL, apiKey: key, timeout: TIMEOUT, ...options });

export function same(got, want, what = "") {
  if (JSON.stringify(got) !== JSON.stringify(want)) {
    throw new Error(`${what}: ${JSON.stringify(got)}, not ${JSON.stringify(want)}`);
  }
}

export function holds(condition, what) {
  if (!condition) throw new Error(typeof what === "string" ? what : JSON.stringify(what));
}

/** Return the error of exactly this class that f must throw. */
export async function raised(kind, f) {
  let got;
  try {
    got = await f();
  } catch (e) {
    if (e?.constructor !== kind) throw new Error(`${e?.constructor?.name}, not ${kind.name}: ${e?.stack}`);
    return e;
  }
  throw new Error(`no error, but ${JSON.stringify(got)}`);
}

/** Talk to the simulator's or the Edge's own paths, beside the SDK. */
export async function control(method, url, body) {
  const res = await fetch(url, { method, body: body && JSON.stringify(body) });
  const text = await res.text();
  holds(res.ok, `${method} ${url}: ${res.status} ${text}`);
  return text;
}

/** The requests that reached the provider with the marker in their body, oldest first. */
export async function seen(marker, sim = WORLD.sim) {
  return JSON.parse(await control("GET", sim + "/sim/requests")).reverse().filter((r) => r.body.includes(marker));
}

/** How many requests for operations have ended at the Edge, or were refused there. */
export const edgeRequests = async (metrics) =>
  (await metric("iop_requests_total", metrics)) + (await metric("iop_requests_refused_total", metrics));

/** How many requests the Edge has refused before they became runs. */
export const refusedSoFar = () => metric("iop_requests_refused_total");

/** The sum of the samples of an Edge's metric. */
async function metric(name, metrics = WORLD.metrics) {
  const lines = (await control("GET", metrics)).split("\n").filter((l) => l.startsWith(name + "{"));
  return lines.reduce((sum, l) => sum + Number(l.slice(l.lastIndexOf(" "))), 0);
}

/** Wait for what other processes bring about; resolve to f's first true answer. */
export async function eventually(what, f) {
  for (const deadline = Date.now() + TIMEOUT; ; ) {
    const got = await f();
    if (got) return got;
    if (Date.now() > deadline) throw new Error(`never: ${what}`);
    await new Promise((r) => setTimeout(r, 20));
  }
}

export const user = (text) => [{ role: "user", content: text }];

export async function collect(stream) {
  const all = [];
  for await (const one of await stream) all.push(one);
  return all;
}
