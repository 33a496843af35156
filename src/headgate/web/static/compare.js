// Compare two logs of the same job, ignoring what always differs: times, durations, ids, addresses, temporary files.
// This module uses neither the page nor the clock. Its work is limited, as jobs may print anything.
import { plain, stamp } from "./printed.js";

export const BYTES_MAX = 128 << 20, LINES_MAX = 1_500_000; // of one log
const READ_CHARS = 1000, WORK_EACH = 40, TABLE_MAX = 250_000, HUNKS_MAX = 20_000;

// What differs every time: dates, times of day, ids, addresses of memory and machines, ports, numbers with a unit of time
// or speed, temporary files, process ids.  Versions are not ignored.
const PASSING = new RegExp([
  String.raw`\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?`,
  String.raw`\b(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? )?(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) {1,2}\d{1,2}\b`,
  String.raw`\b\d{1,2}:\d\d(?::\d\d)?(?:[.,]\d+)?\b`,
  String.raw`\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b`,
  String.raw`\b0x[0-9a-f]+\b`,
  String.raw`\b(?=[a-f]{0,40}\d)[0-9a-f]{7,64}\b`,
  String.raw`\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b`,
  String.raw`\b\d+(?:[.,]\d+)? ?(?:ns|us|µs|ms|s|secs?|seconds?|min|minutes?|h|hours?|[kKMG]?i?B/s)(?![\w-])`,
  String.raw`(?<=\blocalhost:)\d+`,
  String.raw`(?<=/tmp/|/var/tmp/)[\w.-]+`,
  String.raw`(?<=\bpid[ =:]{1,2})\d+`,
  String.raw`(?<=\w\[)\d{3,}(?=\])`,
].join("|"), "gi");

/** A line in the form in which it is compared. */
export const normal = (/** @type {string} */ line) => {
  const text = plain(line.slice(stamp(line)));
  return text.slice(0, READ_CHARS).replace(PASSING, "#") + text.slice(READ_CHARS);
};

// A 53-bit hash of a string: a collision among a million different lines happens in one of 18,000 logs.
function digest(text) {
  let one = 0xdeadbeef, two = 0x41c6ce57;
  for (let n = 0; n < text.length; n++) {
    const code = text.charCodeAt(n);
    one = Math.imul(one ^ code, 2654435761);
    two = Math.imul(two ^ code, 1597334677);
  }
  one = Math.imul(one ^ (one >>> 16), 2246822507) ^ Math.imul(two ^ (two >>> 13), 3266489909);
  two = Math.imul(two ^ (two >>> 16), 2246822507) ^ Math.imul(one ^ (one >>> 13), 3266489909);
  return 4294967296 * (2097151 & two) + (one >>> 0);
}

/** Convert complete lines of logs to numbers: equal lines get the same number in all logs of one `Numbers`. */
export class Numbers {
  #known = new Map();

  /** @returns {{ feed: (data: Uint8Array) => boolean, lines: () => Int32Array, cut: () => boolean }} */
  log() {
    const decoder = new TextDecoder();
    let found = new Int32Array(4096), count = 0, size = 0, cut = false;
    /** @type {string[]} */
    let rest = []; // pieces of a line that has not ended: joined only once, as the line may be as long as the log
    const take = (line) => {
      if (count === found.length) { const more = new Int32Array(2 * count); more.set(found); found = more; }
      // Numbers instead of strings: two logs of a million lines fit into memory, and comparisons are fast.
      const key = digest(normal(line)), known = this.#known.get(key);
      if (known === undefined) this.#known.set(key, this.#known.size);
      found[count++] = known ?? this.#known.size - 1;
    };
    return {
      feed: (data) => { // false: the limit is reached, and no more is read
        if (cut) return false;
        const lines = decoder.decode(data, { stream: true }).split("\n");
        size += data.length;
        rest.push(lines.pop());
        if (lines.length) { const begun = rest; rest = begun.splice(-1); lines[0] = begun.join("") + lines[0]; }
        for (const line of lines) {
          if (count >= LINES_MAX) break;
          take(line);
        }
        cut = size >= BYTES_MAX || count >= LINES_MAX;
        return !cut;
      },
      lines: () => found.subarray(0, count),
      cut: () => cut,
    };
  }
}

/**
 * The parts in which two lists differ: [first there, end there, first here, end here], in order, in one flat list.
 * If the work or the number of parts exceeds a limit, parts are larger than necessary, and `rough` is true.
 * @param {Int32Array} there
 * @param {Int32Array} here
 */
export function differences(there, here) {
  const work = { left: WORK_EACH * (there.length + here.length) + TABLE_MAX, rough: false };
  /** @type {number[]} */
  const found = [];
  // A list instead of recursion: a million parts would exceed the stack.
  const waiting = [[0, there.length, 0, here.length]];
  while (waiting.length) {
    let [a, A, b, B] = waiting.pop();
    while (a < A && b < B && there[a] === here[b]) { a++; b++; }
    while (a < A && b < B && there[A - 1] === here[B - 1]) { A--; B--; }
    if (a === A && b === B) continue;
    const size = A - a + B - b;
    const anchors = a === A || b === B ? [] : work.left < size ? null : common(there, here, a, A, b, B, work);
    if (anchors?.length) for (const part of between(anchors, a, A, b, B).reverse()) waiting.push(part); // one by one: a million would be too many arguments
    else {
      if (anchors === null) work.rough = true;
      found.push(a, A, b, B);
    }
  }
  if (found.length > 4 * HUNKS_MAX) {
    found.splice(4 * HUNKS_MAX - 4, Infinity, found[4 * HUNKS_MAX - 4], found.at(-3), found[4 * HUNKS_MAX - 2], found.at(-1));
    work.rough = true;
  }
  return { parts: Int32Array.from(found), rough: work.rough };
}

// Pairs of equal lines of both parts, in the order of both; empty: there are none; null: finding them is too expensive.
function common(there, here, a, A, b, B, work) {
  work.left -= A - a + B - b;
  const once = new Map(); // line -> where it is there, or -1 where it is there or here more than once
  for (let n = a; n < A; n++) once.set(there[n], once.has(there[n]) ? -1 : n);
  const pairs = new Map();
  for (let n = b; n < B; n++) {
    const at = once.get(here[n]);
    if (at === undefined || at < 0) continue;
    if (pairs.has(at)) { pairs.delete(at); once.set(here[n], -1); } else pairs.set(at, n);
  }
  // Lines that occur once in both are anchors, as in patience diff: unlike empty lines, they rarely match by accident.
  if (pairs.size) return rising([...pairs].sort((one, other) => one[0] - other[0]));
  const table = (A - a) * (B - b);
  if (table > TABLE_MAX || table > work.left) return repeated(there, here, a, A, b, B) ? null : [];
  work.left -= table;
  return longest(there, here, a, A, b, B);
}

function repeated(there, here, a, A, b, B) {
  const known = new Set(there.subarray(a, A));
  return here.subarray(b, B).some((line) => known.has(line));
}

// The longest increasing subsequence by the second number, of pairs that are sorted by the first.
function rising(pairs) {
  const tails = [], before = new Array(pairs.length);
  pairs.forEach(([, at], n) => {
    let low = 0, high = tails.length;
    while (low < high) { const middle = (low + high) >> 1; if (pairs[tails[middle]][1] < at) low = middle + 1; else high = middle; }
    before[n] = low ? tails[low - 1] : -1;
    tails[low] = n;
  });
  const found = [];
  for (let n = tails.at(-1) ?? -1; n >= 0; n = before[n]) found.push(pairs[n]);
  return found.reverse();
}

// The longest common subsequence, by dynamic programming.
function longest(there, here, a, A, b, B) {
  // Sixteen bits suffice: with at most TABLE_MAX cells, the shorter side has at most 500 lines.
  const wide = B - b + 1, table = new Uint16Array((A - a + 1) * wide), found = [];
  for (let x = A - a - 1; x >= 0; x--) for (let y = B - b - 1; y >= 0; y--) {
    table[x * wide + y] = there[a + x] === here[b + y] ? table[(x + 1) * wide + y + 1] + 1 : Math.max(table[(x + 1) * wide + y], table[x * wide + y + 1]);
  }
  for (let x = 0, y = 0; x < A - a && y < B - b;) {
    if (there[a + x] === here[b + y]) found.push([a + x++, b + y++]);
    else if (table[(x + 1) * wide + y] >= table[x * wide + y + 1]) x++;
    else y++;
  }
  return found;
}

// The parts between pairs.
function between(pairs, a, A, b, B) {
  const found = [];
  for (const [x, y] of [...pairs, [A, B]]) {
    if (x > a || y > b) found.push([a, x, b, y]);
    [a, b] = [x + 1, y + 1];
  }
  return found;
}
