// What the cases of the matrix stand on: the world that the Go test describes, packages, and how providers are watched.

import fs from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";
import zlib from "node:zlib";

const [, , modules, world] = process.argv;

export const WORLD = JSON.parse(world);
export const KINDS = ["openai", "ollama", "anthropic"];

// Long enough for a loaded machine; nothing here waits for it to run out.
export const TIMEOUT = 60_000;

/** Import a package from where it was installed, as an import statement beside it would. */
export function load(name) {
  const root = path.join(modules, "node_modules", name);
  const { exports, module, main } = JSON.parse(fs.readFileSync(path.join(root, "package.json"), "utf8"));
  let entry = exports?.["."] ?? module ?? main;
  while (typeof entry === "object") entry = entry.import ?? entry.default ?? entry.require;
  return import(pathToFileURL(path.join(root, entry)));
}

export const say = (line) => process.stdout.write(JSON.stringify(line) + "\n");

function png() {
  const chunk = (kind, data) => {
    const body = Buffer.concat([Buffer.from(kind), data]);
    const size = Buffer.alloc(4), sum = Buffer.alloc(4);
    size.writeUInt32BE(data.length);
    sum.writeUInt32BE(crc32(body));
    return Buffer.concat([size, body, sum]);
  };
  const head = Buffer.from([0, 0, 0, 1, 0, 0, 0, 1, 8, 2, 0, 0, 0]);
  const pixels = zlib.deflateSync(Buffer.from([0, 255, 0, 0]));
  return Buffer.concat([Buffer.from("89504e470d0a1a0a", "hex"), chunk("IHDR", head), chunk("IDAT", pixels), chunk("IEND", Buffer.alloc(0))]);
}

function crc32(bytes) {
  let crc = ~0;
  for (const b of bytes) {
    crc ^= b;
    for (let i = 0; i < 8; i++) crc = (crc >>> 1) ^ (crc & 1 ? 0xedb88320 : 0);
  }
  return ~crc >>> 0;
}

export const PNG = png().toString("base64");
export const DATA_URL = "data:image/png;base64," + PNG;

const failed = {};

/** A model for a request that fails on purpose: one that fails too often is left alone for a while. */
export const failing = (kind) => `${kind}-failing-${WORLD.failing_from + (failed[kind] = (failed[kind] ?? -1) + 1)}`;

export function same(got, want, what = "") {
  if (JSON.stringify(got) !== JSON.stringify(want)) throw new Error(`${what}: ${JSON.stringify(got)}, not ${JSON.stringify(want)}`);
}

export function holds(condition, what) {
  if (!condition) throw new Error(typeof what === "string" ? what : JSON.stringify(what));
}

/** Return the error of one of these classes that f must throw; a class stands for those that `derives` says are its own. */
export async function raised(kinds, f, derives = () => false) {
  const want = [kinds].flat();
  let got;
  try {
    got = await f();
  } catch (e) {
    if (!want.includes(e?.constructor) && !derives(e)) throw new Error(`${e?.constructor?.name}, not ${want.map((k) => k.name)}: ${e?.stack}`);
    return e;
  }
  throw new Error(`no error, but ${JSON.stringify(got)}`);
}

/** The requests among the last few of the provider of this kind with the marker in their body, oldest first. */
export async function seen(marker, kind) {
  const res = await fetch(WORLD.sims[kind] + "/sim/requests?n=150");
  return (await res.json()).reverse().filter((r) => r.body.includes(marker));
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

export const user = (content) => [{ role: "user", content }];

const object = (properties) => ({ type: "object", required: Object.keys(properties), additionalProperties: false, properties });
export const WEATHER = object({ city: { type: "string" } });
export const PERSON = object({ name: { type: "string" }, age: { type: "integer" } });
