// A log as people read it: the rows that are on the screen, of however many; folded by phase, play and task.
import { el } from "./page.js";
import { coloured, plain } from "./colours.js";
import { stamp } from "./lines.js";

const OVER = 40, TALL_MAX = 8e6, HITS_MAX = 10000;  // rows beside those in sight; pixels that every browser can scroll

export class Console {
  #lines; #sizer = el("div", { class: "sizer" }); #rows = el("div", { class: "rows" });
  #height = 24; #folded = new Set(); #hidden = []; #marked = [-1, -1]; #asked = 0; #painting = false;
  words = ""; hits = []; here = -1; times = true; follow = true;
  onscroll = () => {}; onhits = () => {};

  constructor(lines, label) {
    this.#lines = lines;
    this.log = el("div", { id: "log", tabindex: 0, role: "log", "aria-label": label, "aria-live": "off" }, this.#sizer, this.#rows);
    this.log.addEventListener("scroll", () => {
      this.follow = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 4;
      this.onscroll();
      this.#soon();
    });
    new ResizeObserver(() => this.#soon()).observe(this.log);
  }

  // --- which row is which line
  get #count() { return this.#lines.count - this.#hidden.reduce((sum, [from, to]) => sum + to - from, 0); }

  #line(row) {
    for (const [from, to] of this.#hidden) { if (row < from) break; row += to - from; }
    return row;
  }

  #row(line) {
    let before = 0;
    for (const [from, to] of this.#hidden) {
      if (line < from) break;
      before += Math.min(line, to) - from;
    }
    return line - before;
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
  }

  fold(lines, folded) {
    for (const line of lines) if (folded) this.#folded.add(line); else this.#folded.delete(line);
    this.#refold();
    this.#soon();
  }

  #shown(line) {  // opens what hides it
    const { steps } = this.#lines;
    if (this.#hidden.some(([from, to]) => from <= line && line < to)) {
      for (let level = 2, n = steps.findLastIndex((one) => one.line <= line); n >= 0 && level >= 0; n -= 1) {
        if (steps[n].level <= level) { this.#folded.delete(steps[n].line); level = steps[n].level - 1; }
      }
      this.#refold();
    }
  }

  // --- where it is
  get #tall() { return Math.min(TALL_MAX, this.#count * this.#height); }

  get #top() {
    const real = this.#count * this.#height, room = this.#tall - this.log.clientHeight;
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

  // --- drawing, once a frame at most
  #soon() {
    if (this.#painting) return;
    this.#painting = true;
    requestAnimationFrame(() => { this.#painting = false; this.#paint(); });
  }

  async #paint() {
    const asked = ++this.#asked, top = this.#top, sight = Math.ceil(this.log.clientHeight / this.#height);
    const first = Math.max(0, Math.floor(top) - OVER), last = Math.min(this.#count, Math.floor(top) + sight + OVER);
    const wanted = [];
    for (let row = first; row < last; row += 1) wanted.push(this.#line(row));
    if (!wanted.length) return this.#rows.replaceChildren();
    const had = this.#lines.have(wanted[0], wanted.at(-1));
    if (had !== true) {
      try { await had; } catch { return; }  // drawn at the next move
      if (asked !== this.#asked) return;
    }
    this.#rows.replaceChildren(...wanted.map((line) => this.#drawn(line)));
    const tall = this.#rows.firstChild.offsetHeight;
    if (tall && Math.abs(tall - this.#height) > .25) { this.#height = tall; this.grew(); }
    this.#rows.style.transform = `translateY(${this.log.scrollTop - (top - first) * this.#height}px)`;
  }

  #drawn(line) {
    const whole = this.#lines.at(line) ?? "", text = this.times ? whole : whole.slice(stamp(whole));
    const step = this.#lines.step(line), [from, to] = this.#marked;
    const folded = step && this.#folded.has(line);
    const fold = step ? el("button", { type: "button", class: "fold", "aria-expanded": String(!folded), "aria-label": `${folded ? "Show" : "Fold"} ${step.name}`, onclick: () => this.fold([line], !folded) }, folded ? "▸" : "▾") : el("span", { class: "fold" });
    const number = el("a", { class: "no", href: `#L${line + 1}`, onclick: (event) => this.#named(event, line) }, String(line + 1));
    const looks = ["row", step && `step${step.level}`, (step?.failed || line === this.#lines.failure) && "failed", from <= line && line <= to && "named"].filter(Boolean);
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

  #named(event, line) {
    event.preventDefault();
    const first = event.shiftKey && this.#marked[0] >= 0 ? Math.min(this.#marked[0], line) : line;
    const last = event.shiftKey && this.#marked[0] >= 0 ? Math.max(this.#marked[0], line) : line;
    history.replaceState(null, "", `#L${first + 1}${last > first ? `-${last + 1}` : ""}`);
    this.mark(first, last);
  }

  // --- search, over all of it
  #seen = 0; #search = 0;
  async search(words) {
    [this.words, this.hits, this.here, this.#seen] = [words, [], -1, 0];
    this.#soon();
    await this.searched();
  }

  async searched() {  // also what came since
    const mine = ++this.#search;
    if (!this.words) return this.onhits(false);
    await this.#lines.find(this.words, this.#seen, (hits, seen) => {
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
