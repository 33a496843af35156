// The display of a log: only the visible rows exist as elements; phases, plays and tasks can be folded.
import { el } from "./page.js";
import { coloured } from "./colours.js";
import { plain, stamp } from "./printed.js";

const OVER = 40, TALL_MAX = 8e6, HITS_MAX = 10000;  // extra rows above and below the visible ones; a height in pixels that every browser can scroll

const SIDES = { plus: ["+", "only in this build: "], minus: ["−", "only in the last success: "] };

export class Console {
  #lines; #sizer = el("div", { class: "sizer" }); #rows = el("div", { class: "rows" });
  #height = 24; #folded = new Set(); #hidden = []; #before = [0]; #marked = [-1, -1]; #request = 0; #painting = false;
  words = ""; hits = []; here = -1; times = true; follow = true;
  there = "";  // the page of the other build of a comparison
  online = (/** @type {number} */ _line) => {};  // called when somebody clicks the number of a line of a comparison
  onscroll = () => {}; onhits = (/** @type {boolean} */ _going) => {};

  constructor(lines, label) {
    this.#lines = lines;
    this.log = el("div", { id: "log", tabindex: 0, role: "log", "aria-label": label, "aria-live": "off" }, this.#sizer, this.#rows);
    this.log.addEventListener("scroll", () => {
      // Scrolling up stops following the end of the log, and scrolling to the end follows again.
      this.follow = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 4;
      this.onscroll();
      this.#soon();
    });
    new ResizeObserver(() => this.#soon()).observe(this.log);
  }

  // --- mapping between rows and lines
  get #count() { return this.#lines.count - this.#before.at(-1); }

  // The number of hidden ranges for which `at` returns at most `beyond`.
  #passed(at, beyond) {
    let low = 0, high = this.#hidden.length;
    while (low < high) { const middle = (low + high) >> 1; if (at(middle) <= beyond) low = middle + 1; else high = middle; }
    return low;
  }

  #line(row) { return row + this.#before[this.#passed((n) => this.#hidden[n][0] - this.#before[n], row)]; }

  #row(line) {
    const passed = this.#passed((n) => this.#hidden[n][0], line);
    return passed ? line - this.#before[passed - 1] - (Math.min(line, this.#hidden[passed - 1][1]) - this.#hidden[passed - 1][0]) : line;
  }

  #refold() {
    const { steps, count } = this.#lines, ranges = [];
    steps.forEach((one, n) => {
      if (!this.#folded.has(one.line) || ranges.length && one.line < ranges.at(-1)[1]) return;
      let next = n + 1;
      while (next < steps.length && steps[next].level > one.level) next += 1;
      ranges.push([one.line + 1, steps[next]?.line ?? count]);
    });
    this.#hidden = ranges;
    this.#before = [0];
    ranges.forEach(([from, to], n) => this.#before.push(this.#before[n] + to - from));
  }

  fold(lines, folded) {
    for (const line of lines) if (folded) this.#folded.add(line); else this.#folded.delete(line);
    this.#refold();
    this.#soon();
  }

  #shown(line) {  // unfold what hides the line
    const { steps } = this.#lines;
    if (this.#hidden.some(([from, to]) => from <= line && line < to)) {
      for (let level = 2, n = steps.findLastIndex((one) => one.line <= line); n >= 0 && level >= 0; n -= 1) {
        if (steps[n].level <= level) { this.#folded.delete(steps[n].line); level = steps[n].level - 1; }
      }
      this.#refold();
    }
  }

  // --- scrolling
  get #tall() { return Math.min(TALL_MAX, this.#count * this.#height); }

  get #top() {
    const real = this.#count * this.#height, room = this.#tall - this.log.clientHeight;
    // Above the height that browsers can scroll, the scroll bar is scaled: one pixel then stands for several rows.
    return real <= TALL_MAX ? this.log.scrollTop / this.#height : (this.log.scrollTop / Math.max(1, room)) * (this.#count - this.log.clientHeight / this.#height);
  }

  end() { this.grew(); this.log.scrollTop = this.log.scrollHeight; }

  go(line) {
    this.#shown(line);
    this.grew();
    const row = Math.max(0, this.#row(line) - Math.floor(this.log.clientHeight / this.#height / 3));
    const real = this.#count * this.#height;
    this.log.scrollTop = real <= TALL_MAX ? row * this.#height : (row / (this.#count - this.log.clientHeight / this.#height)) * (this.#tall - this.log.clientHeight);
    this.#soon();
  }

  mark(first, last = first) { this.#marked = [first, last]; this.#soon(); }

  grew() {
    if (this.#folded.size) this.#refold();
    this.#sizer.style.height = `${this.#tall}px`;
    if (this.follow) this.log.scrollTop = this.log.scrollHeight;
    this.#soon();
  }

  // --- drawing, at most once per frame
  #soon() {
    if (this.#painting) return;
    this.#painting = true;
    requestAnimationFrame(() => { this.#painting = false; this.#paint(); });
  }

  async #paint() {
    const request = ++this.#request, top = this.#top, sight = Math.ceil(this.log.clientHeight / this.#height);
    const first = Math.max(0, Math.floor(top) - OVER), last = Math.min(this.#count, Math.floor(top) + sight + OVER);
    const wanted = [];
    for (let row = first; row < last; row += 1) wanted.push(this.#line(row));
    if (!wanted.length) return this.#rows.replaceChildren();
    const had = this.#have(wanted);
    if (had.some((one) => one !== true)) {
      try { await Promise.all(had); } catch { return; }  // drawn when the reader scrolls again
      // If the reader has scrolled while lines were fetched, only the latest painting may draw.
      if (request !== this.#request) return;
    }
    this.#rows.replaceChildren(...wanted.map((line) => this.#drawn(line)));
    const tall = this.#rows.querySelector("div").offsetHeight;
    // The height of a row depends on fonts and zoom; with a wrong
    // height, one could not scroll to the last line.
    if (tall && Math.abs(tall - this.#height) > .25) { this.#height = tall; this.grew(); }
    this.#rows.style.transform = `translateY(${this.log.scrollTop - (top - first) * this.#height}px)`;
  }

  // Request only the visible lines, not the hidden ones between them.
  #have(wanted) {
    const found = [];
    for (let n = 0, from = 0; n < wanted.length; n += 1) {
      if (wanted[n + 1] === wanted[n] + 1) continue;
      found.push(this.#lines.have(wanted[from], wanted[n]));
      from = n + 1;
    }
    return found;
  }

  #drawn(line) {
    const full = this.#lines.at(line) ?? "", text = this.times ? full : full.slice(stamp(full));
    const step = this.#lines.step(line), [from, to] = this.#marked;
    const folded = step && this.#folded.has(line);
    const fold = step ? el("button", { type: "button", class: "fold", "aria-expanded": String(!folded), "aria-label": `${folded ? "Show" : "Fold"} ${step.name}`, onclick: () => this.fold([line], !folded) }, folded ? "▸" : "▾") : el("span", { class: "fold" });
    const [kind, named] = this.#lines.row(line);
    const number = kind === "head" ? el("span", { class: "no" }) : el("a", { class: "no", href: `${kind === "minus" ? this.there : ""}#L${named + 1}`, onclick: (event) => this.#followed(event, kind, line, named) }, String(named + 1));
    const looks = ["row", kind, step && `step${step.level}`, (step?.failed || line === this.#lines.failure) && "failed", from <= line && line <= to && "named"].filter(Boolean);
    if (SIDES[kind]) fold.append(el("span", { "aria-hidden": "true" }, SIDES[kind][0]), el("span", { class: "hidden" }, SIDES[kind][1]));
    return el("div", { class: looks.join(" ") }, number, fold, el("span", { class: "text" }, this.#text(text, line)));
  }

  #text(text, line) {
    if (!this.words) return coloured(text);
    const shown = plain(text), lower = shown.toLowerCase(), sought = this.words.toLowerCase(), found = [];
    let from = 0;
    for (let n = lower.indexOf(sought); n >= 0; n = lower.indexOf(sought, from)) {
      found.push(shown.slice(from, n), el("mark", { class: this.hits[this.here] === line ? "here" : null }, shown.slice(n, n + sought.length)));
      from = n + sought.length;
    }
    return found.length ? [...found, shown.slice(from)] : coloured(text);
  }

  #followed(event, kind, line, named) {
    if (kind === "minus") return;
    event.preventDefault();
    if (kind) this.online(named); else this.#named(event, line);
  }

  #named(event, line) {
    const first = event.shiftKey && this.#marked[0] >= 0 ? Math.min(this.#marked[0], line) : line;
    const last = event.shiftKey && this.#marked[0] >= 0 ? Math.max(this.#marked[0], line) : line;
    history.replaceState(null, "", `#L${first + 1}${last > first ? `-${last + 1}` : ""}`);
    this.mark(first, last);
  }

  // --- search in the entire log
  #seen = 0; #search = 0;
  async search(words) {
    [this.words, this.hits, this.here, this.#seen] = [words, [], -1, 0];
    this.#soon();
    await this.searched();
  }

  async searched() {  // also searches what was appended since
    const mine = ++this.#search;
    if (!this.words) return this.onhits(false);
    await this.#lines.find(this.words, this.#seen, (hits, seen) => {
      // If another search has begun since, its hits must not be mixed with these.
      if (mine !== this.#search) return;
      this.hits.push(...hits.slice(0, HITS_MAX - this.hits.length));
      this.#seen = seen;
      if (this.here < 0 && this.hits.length) this.step(1);
      this.onhits(true);
    }, () => mine === this.#search && this.hits.length < HITS_MAX).catch(() => {});
    if (mine === this.#search) this.onhits(false);
  }

  get full() { return this.hits.length >= HITS_MAX; }

  step(by) {
    if (!this.hits.length) return;
    this.follow = false;
    this.here = (this.here + by + this.hits.length) % this.hits.length;
    this.go(this.hits[this.here]);
    this.onhits(false);
  }
}
