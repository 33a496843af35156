// All lines of a log. Of a large log only a part is kept in memory; other lines are requested again, by range.
import { plain, stamp } from "./printed.js";

const STRIDE = 256, CACHE_BYTES = 48 << 20, DECODED = 64, STEPS_MAX = 20000, PHASES_MORE = 100;
/** @type {[RegExp, number][]} */
const LEVELS = [[/^(?:PRE-|POST-|CLEANUP-)?RUN START: \[(?:\w+ : )?(.*)\]$/, 0], [/^PLAY \[(.*)\]$/, 1], [/^(?:CLEANUP )?(?:TASK|RUNNING HANDLER) \[(.*)\]$/, 2]];
const ENDED = /^(?:PRE-|POST-|CLEANUP-)?RUN END: (?!good\b)/, FAILED = /^\S+ \| (?:FAILED|UNREACHABLE)\b(?! \(ignored\))/;
// What a program prints about an error, as the executor recognises it for reports.
const WORDED = /^E {3}|\b[A-Z]\w*(?:Error|Exception)\b|\b(?:ERROR|FAILED|FAIL|FATAL)\b|^not ok\b|\*\*\* /, NAMED = /\b(?:error|fatal|panic): /i;
const HARMLESS = /\(ignored\)|\b(?:0 errors?|no errors?)\b/i, EXAMINED = 1000;
const worded = (text) => (WORDED.test(text) || NAMED.test(text)) && !HARMLESS.test(text);

export class Lines {
  bytes = 0;  // read so far
  count = 0;  // complete lines
  steps = [];  // phases, plays and tasks: { line, level, name, failed }
  failure = -1;  // the line with the reason of the first failed phase
  #blocks = [];  // { start, size, data }, of STRIDE lines each
  #open = { start: 0, parts: [], size: 0, lines: 0 };
  #cachedBytes = 0;
  #next = 0;  // the oldest block that may still be in memory
  #decoded = new Map();
  #newest = { n: -1, size: -1, lines: [] };
  #headed = new Map();  // line -> the step that begins there
  #suspect = -1;
  #worded = -1;  // the first line of the phase that names an error
  #range; #most;

  constructor(range, most = CACHE_BYTES) { [this.#range, this.#most] = [range, most]; }  // (first byte, last byte) -> Uint8Array

  feed(data) {
    this.bytes += data.length;
    for (let from = 0; from < data.length;) {
      let end = from;
      while (end < data.length && this.#open.lines < STRIDE) {
        const found = data.indexOf(10, end);
        if (found < 0) { end = data.length; break; }
        end = found + 1;
        this.#open.lines += 1;
      }
      // A copy, as the caller may transfer the buffer to a worker.
      const part = data.slice(from, end);
      this.#open.parts.push(part);
      this.#open.size += part.length;
      from = end;
      if (this.#open.lines === STRIDE) this.#close();
    }
    this.#read();
  }

  #close() {
    this.#read();
    const { start, size, parts } = this.#open, data = joined(parts, size);
    this.#blocks.push({ start, size, data });
    this.#cachedBytes += size;
    for (; this.#cachedBytes > this.#most && this.#next < this.#blocks.length - 1; this.#next += 1) {
      this.#cachedBytes -= this.#blocks[this.#next].data ? this.#blocks[this.#next].size : 0;
      // The oldest bytes are dropped first; if they are needed, their offset and size suffice to request them again.
      this.#blocks[this.#next].data = null;
    }
    this.#open = { start: start + size, parts: [], size: 0, lines: 0 };
  }

  // Find the steps of the build in new lines.
  #read() {
    const begin = this.#blocks.length * STRIDE, known = this.count - begin, complete = this.#open.lines;
    if (known === complete) return;
    const text = decode(joined(this.#open.parts, this.#open.size)).split("\n");
    for (let at = known; at < complete; at += 1) this.#heard(begin + at, text[at]);
    this.count = begin + complete;
  }

  #heard(line, text) {
    const message = text.slice(stamp(text)), last = this.steps.at(-1);
    if (FAILED.test(message)) {
      this.#suspect = line;
      if (last?.level === 2) last.failed = true;
    } else if (ENDED.test(message)) {
      const phase = this.steps.findLast((one) => one.level === 0);
      if (phase) phase.failed = true;
      if (this.failure < 0) this.failure = [this.#suspect, this.#worded].find((one) => one >= (phase?.line ?? 0)) ?? line;
    } else if (this.#worded < 0 && worded(message.slice(0, EXAMINED))) this.#worded = line;
    for (const [form, level] of LEVELS) {
      const name = form.exec(message)?.[1];
      if (name === undefined) continue;
      if (this.steps.length >= STEPS_MAX + (level ? 0 : PHASES_MORE)) return;  // limited, as a job may print any number of them
      if (!level) this.#worded = -1;
      const step = { line, level, name: level ? name : message.split(" ")[0].toLowerCase() + (name ? ` · ${name}` : ""), failed: false };
      this.steps.push(step);
      this.#headed.set(line, step);
      return;
    }
  }

  step(line) { return this.#headed.get(line); }

  /** The kind of a row, and its line: [kind, line]. */
  row(line) { return ["", line]; }

  at(line) { return this.#block(Math.floor(line / STRIDE))?.[line % STRIDE]; }  // undefined: not in memory

  // Return true if the lines are in memory, or else a promise that resolves once they are.
  have(first, last) {
    const wanted = [];
    for (let n = Math.floor(first / STRIDE); n <= Math.floor(last / STRIDE) && n < this.#blocks.length; n += 1) {
      if (!this.#blocks[n].data && !this.#decoded.has(n)) wanted.push(n);
    }
    return wanted.length === 0 || Promise.all(wanted.map((n) => this.#fetch(n))).then(() => true);
  }

  async #fetch(n) {
    const { start, size } = this.#blocks[n];
    this.#remember(n, decode(await this.#range(start, start + size - 1)).split("\n"));
  }

  #block(n) {
    // The last block still grows: it is decoded again only after it has grown.
    if (n === this.#blocks.length) {
      if (this.#newest.size !== this.#open.size || this.#newest.n !== n) this.#newest = { n, size: this.#open.size, lines: decode(joined(this.#open.parts, this.#open.size)).split("\n") };
      return this.#newest.lines;
    }
    if (!this.#decoded.has(n)) {
      const data = this.#blocks[n]?.data;
      if (!data) return undefined;
      this.#remember(n, decode(data).split("\n"));
    }
    return this.#decoded.get(n);
  }

  #remember(n, lines) {
    this.#decoded.set(n, lines);
    // A map preserves the order of insertion, so its first key is the block that was decoded first.
    if (this.#decoded.size > DECODED) this.#decoded.delete(this.#decoded.keys().next().value);
  }

  find(words, from, tell, wanted) { return search(this, words, from, tell, wanted); }
}

// Search from a line on; call `tell` with the matching lines of each part; stop once `wanted()` is false.
export async function search(lines, words, from, tell, wanted) {
  const sought = words.toLowerCase();
  for (let begin = from; begin < lines.count && wanted();) {
    const end = Math.min(lines.count, (Math.floor(begin / STRIDE) + 16) * STRIDE), hits = [];
    if (lines.have(begin, end - 1) !== true) await lines.have(begin, end - 1);
    for (let line = begin; line < end; line += 1) if (plain(lines.at(line) ?? "").toLowerCase().includes(sought)) hits.push(line);
    tell(hits, end);
    begin = end;
    await new Promise((done) => setTimeout(done));  // lets people scroll in the meantime
  }
}

const decoder = new TextDecoder();
const decode = (data) => decoder.decode(data);

function joined(parts, size) {
  if (parts.length === 1) return parts[0];
  const joined = new Uint8Array(size);
  let at = 0;
  for (const part of parts.splice(0)) { joined.set(part, at); at += part.length; }
  parts.push(joined);
  return joined;
}
