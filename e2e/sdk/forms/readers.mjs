// Reads forms as servers in Node.js do, as readers.py does. The argument is the directory that has node_modules.
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { Readable, Writable } from 'node:stream';

const require = createRequire(`${process.argv[2]}/`);
const busboy = require('busboy');
const { formidable } = require('formidable');

const part = (kind, name, content) => [kind, name, Buffer.from(content).toString('base64')];

const headers = (type, body) => ({ 'content-type': type, 'content-length': String(body.length) });

const withBusboy = (type, body) =>
  new Promise((resolve, reject) => {
    const parts = [];
    const reader = busboy({ headers: headers(type, body) });
    reader.on('field', (name, value) => parts.push(part('field', name, value)));
    reader.on('file', (name, stream) => {
      const chunks = [];
      stream.on('data', (chunk) => chunks.push(chunk));
      stream.on('end', () => parts.push(part('file', name, Buffer.concat(chunks))));
    });
    reader.on('error', reject);
    reader.on('close', () => resolve(parts));
    reader.end(body);
  });

const withFormidable = async (type, body) => {
  const contents = new Map();
  const form = formidable({
    allowEmptyFiles: true,
    minFileSize: 0,
    maxFields: Infinity,
    fileWriteStreamHandler: (file) => {
      const chunks = [];
      contents.set(file, chunks);
      return new Writable({ write: (chunk, _, done) => { chunks.push(chunk); done(); } });
    },
  });
  const request = Object.assign(Readable.from([body]), { headers: headers(type, body) });
  const [fields, files] = await form.parse(request);
  return [
    ...Object.entries(fields).flatMap(([name, values]) => values.map((value) => part('field', name, value))),
    ...Object.entries(files).flatMap(([name, list]) => list.map((file) => part('file', name, Buffer.concat(contents.get(file))))),
  ];
};

const withNode = async (type, body) => {
  const form = await new Response(body, { headers: { 'content-type': type } }).formData();
  return Promise.all(
    [...form].map(async ([name, value]) =>
      typeof value === 'string' ? part('field', name, value) : part('file', name, await value.arrayBuffer())),
  );
};

const readers = { busboy: withBusboy, formidable: withFormidable, node: withNode };

for await (const line of createInterface({ input: process.stdin })) {
  const { type, body } = JSON.parse(line);
  const found = {};
  for (const [name, reader] of Object.entries(readers)) {
    found[name] = await reader(type, Buffer.from(body, 'base64')).then(
      (parts) => parts,
      (error) => `${error.name}: ${error.message}`,
    );
  }
  console.log(JSON.stringify(found));
}
