// readings.py for JavaScript: JSON.parse, of bytes as TextDecoder and Buffer read them, with names in lower case, and copied member by
// member, which makes a prototype of __proto__.

import { createInterface } from 'node:readline'

const most = 2 ** 40

// A number as JavaScript's coercion takes it.
function number(v) {
  if (typeof v === 'object') return JSON.stringify(v)
  const n = Number(v)
  return Number.isNaN(n) ? JSON.stringify(v) : Math.max(Math.min(n, most), -most)
}

const isObject = (v) => typeof v === 'object' && v !== null && !Array.isArray(v)
const inside = (v, name) => (isObject(v) ? v[name] ?? null : null)

// What a reader makes of a body. Absent and null are the same.
function reading(d, tables) {
  const r = {}
  for (const name of ['model', 'user', 'session_id', 'prompt_cache_key']) r[name] = d[name] ?? null
  r.stream = Boolean(d.stream)
  r.include_usage = Boolean(inside(d.stream_options, 'include_usage'))
  const session = inside(d.metadata, 'session_id')
  r.metadata = typeof session === 'string' ? session : null
  for (const name of [...tables.counts, ...tables.lengths]) r[name] = d[name] === undefined || d[name] === null ? null : number(d[name])
  const length = inside(d.options, 'num_predict')
  r.options = length === null ? null : number(length)
  const stands = (key, name) => (name.endsWith('*') ? key.startsWith(name.slice(0, -1)) : key === name)
  const names = []
  for (const name in d) names.push(name) // those of a prototype, too
  r.steering = tables.steering.filter((n) => names.some((k) => d[k] !== null && d[k] !== false && stands(k, n))).sort()
  return r
}

function lower(d) {
  if (!isObject(d)) return d
  return Object.fromEntries(Object.entries(d).map(([k, v]) => [k.toLowerCase(), lower(v)]))
}

function assigned(d) {
  if (!isObject(d)) return d
  const to = {}
  for (const [k, v] of Object.entries(d)) to[k] = assigned(v)
  return to
}

const readers = {
  'JSON.parse': (body) => JSON.parse(new TextDecoder().decode(body)),
  'Buffer': (body) => JSON.parse(body.toString('utf8')),
  'Object.assign': (body) => assigned(JSON.parse(body.toString('utf8'))),
  'toLowerCase': (body) => lower(JSON.parse(body.toString('utf8'))),
}

let tables
for await (const line of createInterface({ input: process.stdin })) {
  if (!tables) {
    tables = JSON.parse(line)
    continue
  }
  const body = Buffer.from(line, 'base64')
  const out = {}
  for (const [name, read] of Object.entries(readers)) {
    try {
      const d = read(body)
      if (isObject(d)) out[name] = reading(d, tables)
    } catch {
      // refused
    }
  }
  console.log(JSON.stringify(out))
}
