// Two logs merged into one: lines of only the last success, lines of only this build, and common lines, which are folded
// except near differences.  It is displayed and searched like a log.
import { search } from "./lines.js";

const AROUND = 3;

export class Compared {
  steps = []; failure = -1; // as in a log: foldable parts, at level 0
  same = []; differing = []; // the rows where folds of equal lines begin, and those where differing parts begin
  count = 0;
  #there; #here;
  #segments = []; // { row, kind, there, here }: rows from `row` to the next segment; the first line of it in each log
  #named = new Map();

  /**
   * @param {import("./lines.js").Lines} there the last success
   * @param {import("./lines.js").Lines} here this build
   * @param {Int32Array} parts as `differences` returns them
   * @param {{ there: number, here: number }} counts the numbers of compared lines
   */
  constructor(there, here, parts, counts) {
    [this.#there, this.#here] = [there, here];
    let a = 0, b = 0;
    for (let n = 0; n <= parts.length; n += 4) {
      const end = n === parts.length, [x, X, y, Y] = end ? [counts.there, counts.there, counts.here, counts.here] : parts.subarray(n, n + 4);
      this.#equal(a, b, x - a, n > 0, !end);
      if (end) break;
      this.#add("minus", X - x, x, y);
      this.#add("plus", Y - y, X, y);
      [a, b] = [X, Y];
    }
  }

  #add(kind, count, there, here) {
    if (!count) return;
    this.#segments.push({ row: this.count, kind, there, here });
    this.count += count;
  }

  #head(name, where, there, here) {
    const step = { line: this.count, level: 0, name, failed: false };
    this.steps.push(step);
    this.#named.set(this.count, step);
    where.push(this.count);
    this.#add("head", 1, there, here);
  }

  // Add a run of common lines; `after` and `before` tell whether a differing part precedes and follows it.
  #equal(there, here, count, after, before) {
    const first = after ? AROUND : 0, last = before ? AROUND : 0, folded = count - first - last;
    if (folded > 1) {
      this.#add("same", first, there, here);
      this.#head(`${folded.toLocaleString()} lines are the same`, this.same, there + first, here + first);
      this.#add("same", folded, there + first, here + first);
      [there, here, count] = [there + first + folded, here + first + folded, last];
    }
    if (before) this.#head(`line ${(here + count + 1).toLocaleString()} here, ${(there + count + 1).toLocaleString()} there`, this.differing, there + count, here + count);
    this.#add("same", count, there, here);
  }

  #place(row) { // the index of the segment that contains the row
    let low = 0, high = this.#segments.length - 1;
    while (low < high) { const middle = (low + high + 1) >> 1; if (this.#segments[middle].row <= row) low = middle; else high = middle - 1; }
    return low;
  }

  step(row) { return this.#named.get(row); }

  /** The kind of a row, and its line in its log: [kind, line]. */
  row(row) {
    const { row: first, kind, there, here } = this.#segments[this.#place(row)];
    return [kind, (kind === "minus" ? there : here) + row - first];
  }

  at(row) {
    const [kind, line] = this.row(row);
    return kind === "head" ? this.step(row).name : kind === "minus" ? this.#there.at(line) : this.#here.at(line);
  }

  have(first, last) {
    const wanted = [];
    for (let row = first, place = this.#place(first); row <= last && row < this.count; place++) {
      const [kind, line] = this.row(row), next = Math.min(this.#segments[place + 1]?.row ?? this.count, last + 1);
      if (kind !== "head") wanted.push((kind === "minus" ? this.#there : this.#here).have(line, line + next - row - 1));
      row = next;
    }
    return wanted.every((one) => one === true) || Promise.all(wanted).then(() => true);
  }

  find(words, from, tell, wanted) { return search(this, words, from, tell, wanted); }
}
