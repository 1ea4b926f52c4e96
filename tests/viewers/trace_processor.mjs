// Perfetto's trace processor, as its user interface runs it: the engine of a release
// of the user interface, outside of a browser.
//
// The engine is a worker script that expects a browser around it. What it needs of
// one is given to it here: `self`, a way to read the .wasm beside it, and a port.
// Requests and replies are Perfetto's TraceProcessorRpc messages (trace_processor.proto);
// the few fields that are used are encoded and decoded by hand.
import fs from 'node:fs';
import path from 'node:path';
import vm from 'node:vm';

const CHUNK = 16 << 20;
const APPEND = 1;
const FINALIZE = 2;
const QUERY = 3;

function varint(value) {
  const bytes = [];
  let rest = BigInt(value);
  while (rest > 127n) {
    bytes.push(Number(rest & 127n) | 128);
    rest >>= 7n;
  }
  bytes.push(Number(rest));
  return Buffer.from(bytes);
}

const number = (field, value) => Buffer.concat([varint(field << 3), varint(value)]);

function bytes(field, content) {
  const data = Buffer.from(content);
  return Buffer.concat([varint((field << 3) | 2), varint(data.length), data]);
}

/** The fields of a message: number, and an integer, bytes or eight raw bytes. */
function* fields(data) {
  let at = 0;
  const integer = () => {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const byte = data[at++];
      if (byte === undefined) throw new Error('a cut reply');
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return value;
    }
  };
  while (at < data.length) {
    const key = Number(integer());
    const [field, type] = [key >> 3, key & 7];
    if (type === 0) yield [field, integer()];
    else if (type === 1) yield [field, data.subarray(at, (at += 8))];
    else if (type === 2) {
      const length = Number(integer());
      yield [field, data.subarray(at, (at += length))];
    } else throw new Error(`a field of type ${type}`);
  }
}

function varints(data) {
  const all = [];
  let value = 0n;
  let shift = 0n;
  for (const byte of data) {
    value |= BigInt(byte & 127) << shift;
    shift += 7n;
    if (byte < 128) {
      all.push(BigInt.asIntN(64, value));
      [value, shift] = [0n, 0n];
    }
  }
  return all;
}

/** Columns and cells of the parts of a QueryResult. */
function table(parts) {
  const columns = [];
  const cells = [];
  for (const part of parts) {
    for (const [field, value] of fields(part)) {
      if (field === 1) columns.push(value.toString());
      else if (field === 2 && value.length) throw new Error(value.toString());
      else if (field === 3) cells.push(...batch(value));
    }
  }
  const rows = [];
  for (let at = 0; columns.length && at < cells.length; at += columns.length) {
    rows.push(Object.fromEntries(columns.map((name, i) => [name, cells[at + i]])));
  }
  return rows;
}

function batch(data) {
  const of = { types: [], integers: [], floats: [], texts: [] };
  for (const [field, value] of fields(data)) {
    if (field === 1) of.types.push(...value);
    else if (field === 2) of.integers.push(...varints(value));
    else if (field === 3) {
      for (let at = 0; at < value.length; at += 8) of.floats.push(value.readDoubleLE(at));
    } else if (field === 5) of.texts.push(...value.toString().split('\0').slice(0, -1));
  }
  return of.types.map((type) => {
    if (type === 1) return null;
    if (type === 2) return Number(of.integers.shift());
    if (type === 3) return of.floats.shift();
    if (type === 4) return of.texts.shift();
    throw new Error(`a cell of type ${type}`);
  });
}

export class TraceProcessor {
  /** Starts the engine that lies in a folder of the user interface's release. */
  static async start(folder) {
    const warnings = [];
    const read = (name) => fs.readFileSync(path.join(folder, path.basename(String(name))));
    class XMLHttpRequest {
      open(method, name) {
        this.name = name;
      }
      send() {
        this.status = 200;
        this.response = Uint8Array.from(read(this.name)).buffer;
      }
    }
    const self = {};
    const world = {
      self,
      console: { log: () => {}, warn: (text) => warnings.push(String(text)), error: (t) => warnings.push(String(t)) },
      fetch: async (name) => new Response(read(name)),
      XMLHttpRequest,
      location: { href: 'http://localhost/engine_bundle.js' },
      importScripts: () => {},
      WebAssembly, TextDecoder, TextEncoder, setTimeout, clearTimeout, URL, performance,
      Response, crypto,
      // The same as outside, for what crosses the border is checked with instanceof.
      Uint8Array, ArrayBuffer, Error, TypeError, RangeError, Promise, Object, Array,
    };
    world.WorkerGlobalScope = function () {};
    self.location = world.location;
    const code = fs.readFileSync(path.join(folder, 'engine_bundle.js'), 'utf8');
    vm.runInNewContext(code, world, { filename: 'engine_bundle.js' });
    const processor = new TraceProcessor(warnings);
    self.onmessage({ data: processor.port });
    // Its code is compiled by now; what is left is a few turns of the event loop.
    await new Promise((resolve) => setTimeout(resolve, 500));
    processor.query('select 1 as one');
    return processor;
  }

  constructor(warnings) {
    this.warnings = warnings;
    this.replies = [];
    this.sequence = 0;
    this.port = { postMessage: (data) => this.replies.push(Buffer.from(data)) };
  }

  request(kind, body) {
    const message = Buffer.concat([number(1, this.sequence++), number(2, kind), body]);
    this.port.onmessage({ data: new Uint8Array(bytes(1, message)) });
    const replies = this.replies;
    this.replies = [];
    const messages = [];
    for (const [field, message] of fields(Buffer.concat(replies))) {
      if (field === 1) messages.push(message);
    }
    for (const message of messages) {
      for (const [field, value] of fields(message)) {
        if (field === 5) throw new Error(value.toString());
      }
    }
    return messages;
  }

  /** The parts of replies with this field. */
  static parts(messages, wanted) {
    return messages.flatMap((m) => [...fields(m)].filter(([f]) => f === wanted).map(([, v]) => v));
  }

  /** Reads a trace. */
  load(file) {
    const data = fs.readFileSync(file);
    for (let at = 0; at < data.length; at += CHUNK) {
      const messages = this.request(APPEND, bytes(101, data.subarray(at, at + CHUNK)));
      for (const result of TraceProcessor.parts(messages, 201)) {
        for (const [field, value] of fields(result)) {
          if (field === 2 && value.length) throw new Error(value.toString());
        }
      }
    }
    this.request(FINALIZE, Buffer.alloc(0));
  }

  /** The rows of a query. */
  query(sql) {
    const messages = this.request(QUERY, bytes(103, bytes(1, sql)));
    return table(TraceProcessor.parts(messages, 203));
  }
}
