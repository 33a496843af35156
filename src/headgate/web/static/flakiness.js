// How flaky a job is over time, as a chart and as a table of the same numbers.
import { el, instant, table } from "./page.js";
import { bars } from "./chart.js";

export const OF_JOB = ["project", "branch", "pipeline", "nodeset"];
const TIMES = [7, 30, 90, 365], USUAL = 30, BY_WEEK = 90;
let unfolded = false;
const daysOf = (chosen) => (TIMES.includes(Number(chosen.get("days"))) ? Number(chosen.get("days")) : USUAL);
const unit = (days) => (days > BY_WEEK ? "week" : "day");

// What to ask the server for.
export function flakily(job, chosen) {
  const days = daysOf(chosen), query = new URLSearchParams({ job_name: job, days: String(days), slot: unit(days) });
  for (const key of OF_JOB) if (chosen.get(key)) query.set(key, chosen.get(key));
  return query;
}

const share = (some, all) => (all ? ` (${Math.round(100 * some / all)} %)` : "");
const told = (one) => `${one.flaky} of ${one.trees} states of the code${share(one.flaky, one.trees)}`;

// Every slot of the time, also those in which nothing ended.
function whole(found) {
  const first = +instant(found.start_time), last = +instant(found.end_time), known = new Map(found.slots.map((one) => [one.start_time, one])), all = [];
  for (let at = first; at < last; at += found.slot_seconds * 1000) {
    const start = new Date(at).toISOString().slice(0, 19), one = known.get(start);
    all.push({ at: start, part: one && one.trees ? one.flaky / one.trees : null, text: `${start.slice(0, 10)}: ${one ? `${told(one)} flaky, ${one.failed} of ${one.builds} builds failed` : "no build ended"}` });
  }
  return all;
}

export function daily(found, chosen) {
  const days = daysOf(chosen), name = unit(days), flaky = found.slots.reduce((all, one) => all + one.flaky, 0), trees = found.slots.reduce((all, one) => all + one.trees, 0);
  const others = TIMES.map((n) => (n === days ? el("strong", {}, `${n} days`) : el("a", { href: `?${new URLSearchParams({ ...Object.fromEntries(chosen), days: String(n) })}` }, `${n} days`)));
  const rows = found.slots.map((one) => [one.start_time.slice(0, 10), one.flaky ? told(one) : `0 of ${one.trees}`, one.failed ? `${one.failed}${share(one.failed, one.builds)}` : "", String(one.builds), one.retried ? String(one.retried) : ""]).reverse();
  const label = `Flaky states of the code by ${name}, of the last ${days} days: ${told({ flaky, trees })}; the table below has each ${name}`;
  return [el("h2", {}, `How flaky is it, by ${name}?`), el("p", { class: "small" }, "Of the last ", ...others.flatMap((one, n) => (n ? [" · ", one] : [one])), `. A state of the code counts on the ${name} on which the job first ended on it, and is flaky if it failed there and passed later. Times are UTC.`),
    found.complete_from ? el("p", { class: "note" }, `There is more than one answer can count: only what ended from ${found.complete_from} UTC on is counted.`) : "",
    rows.length ? bars(whole(found), label) : el("p", { class: "empty" }, `No build has ended in the last ${days} days.`),
    rows.length ? el("details", { open: unfolded, ontoggle: ({ target }) => { unfolded = target.open; } }, el("summary", {}, "The same as a table"), table([name === "week" ? "Week from" : "Day", "Flaky", "Failed", "Builds", "Tried again"], rows, "")) : ""];
}
