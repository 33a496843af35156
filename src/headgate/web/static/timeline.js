// The times at which each build of a buildset waited, ran and paused, from the time at which the change was enqueued.
import { el, instant, link, look, took } from "./page.js";
import { now } from "./live.js";

const LEAST = .4; // per cent that the shortest bar is wide
const at = (/** @type {?string} */ text) => (text ? +instant(text) : 0);

// The phases of a build: [kind, from, to, description].
function parts(b, ready) {
  const { semaphores = [], had_time, paused_time, resumed_time } = b.course ?? {};
  const requested = at(b.execute_time), began = at(b.start_time), end = at(b.end_time) || (b.result ? began : now());
  const had = Math.min(at(had_time) || began, began || Infinity), found = [];
  const add = (kind, from, to, words) => { if (from && to && to - from >= 1000) found.push([kind, from, to, words]); };
  add("waits", ready, requested, semaphores.length ? `for ${semaphores.join(", ")}` : "for its turn");
  add("machines", requested, had || began || end, "for machines");
  if (had && began) add("waits", had, began, semaphores.length ? `for ${semaphores.join(", ")}` : "to begin");
  if (began) found.push([look(b.result), began, Math.max(end, began), "ran"]);
  if (at(paused_time)) add("paused", at(paused_time), at(resumed_time) || end, "paused");
  return found;
}

// The time at which all jobs that a build depends on had ended or paused.
function readyAt(b, builds, begin) {
  const needs = b.course?.needs ?? [];
  const ends = needs.flatMap((name) => builds.filter((one) => one.job_name === name && at(one.start_time) <= (at(b.start_time) || Infinity))).map((one) => at(one.course?.paused_time) || at(one.end_time));
  return Math.max(begin, ...ends);
}

function summary(b, drawn) {
  const { needs = [], semaphores = [], machines = [] } = b.course ?? {};
  const long = (kind, word) => drawn.filter(([one]) => one === kind).map(([, from, to, words]) => `${word} ${took(to - from)}${kind === "waits" ? ` ${words}` : ""}`);
  return [b.voting ? "" : "non-voting", needs.length ? `after ${needs.join(", ")}` : "", ...long("waits", "waited"), ...long("machines", "waited").map((text) => `${text} for machines`), ...long("paused", "paused"),
    semaphores.length ? `semaphore${semaphores.length > 1 ? "s" : ""} ${semaphores.join(", ")}` : "", machines.length ? `on ${machines.join(", ")}` : ""].filter(Boolean).join(" · ");
}

/** The timeline of a buildset of the API; empty if no build ran. */
export function timeline(set) {
  const all = set.builds ?? [], builds = all.filter((b) => b.start_time || b.execute_time).sort((a, b) => (at(a.start_time) || at(a.execute_time)) - (at(b.start_time) || at(b.execute_time)));
  if (!builds.length) return [];
  const begin = Math.min(at(set.event_timestamp) || Infinity, ...builds.map((b) => at(b.execute_time) || at(b.start_time)));
  const first = Math.min(...builds.map((b) => at(b.execute_time) || at(b.start_time))); // the first build is requested once the change is merged
  const rows = builds.map((b) => [b, parts(b, readyAt(b, all, first))]);
  const span = Math.max(1000, Math.max(...rows.flatMap(([, drawn]) => drawn.map(([, , to]) => to))) - begin);
  const percent = (ms) => 100 * ms / span;
  const bar = ([kind, from, to, words]) => {
    const node = el("i", { class: kind, title: `${words}: ${took(to - from)}` });
    node.style.left = `${Math.min(100 - LEAST, percent(from - begin))}%`;
    node.style.width = `${Math.max(LEAST, percent(to - from))}%`;
    return node;
  };
  const row = ([b, drawn]) => {
    const ran = drawn.find(([kind]) => kind === look(b.result));
    return el("li", {}, el("span", { class: "name" }, link("build", b.uuid, b.job_name), b.attempt > 1 ? `, attempt ${b.attempt}` : ""), el("span", { class: "track" }, drawn.map(bar)),
      el("span", { class: "small" }, ran ? `after ${took(ran[1] - begin)}, ${took(ran[2] - ran[1])}` : "waits"), el("span", { class: "small about" }, summary(b, drawn)));
  };
  const many = span < 8000 ? 2 : 4, ticks = [...Array(many + 1).keys()].map((n) => { const node = el("span", {}, took(span * n / many)); node.style.left = `${100 * n / many}%`; return node; });
  const kinds = [["waits", "waits for its turn or a semaphore"], ["machines", "waits for machines"], ["busy", "runs"], ["good", "passed"], ["bad", "failed"], ["paused", "paused for the jobs that depend on it"]];
  const there = new Set(rows.flatMap(([, drawn]) => drawn.map(([kind]) => kind)));
  return [el("h2", {}, "Timeline"), el("p", { class: "small legend" }, kinds.filter(([kind]) => there.has(kind)).map(([kind, words]) => el("span", {}, el("i", { class: kind }), words))),
    el("ol", { class: "plain timeline" }, el("li", { class: "axis", "aria-hidden": "true" }, el("span"), el("span", { class: "ticks" }, ticks), el("span")), rows.map(row))];
}
