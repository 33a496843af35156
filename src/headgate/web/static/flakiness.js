// How flaky a job is over time, or all jobs of a pipeline or project together, as a chart and as a table of the same numbers.
import { el, instant, table } from "./page.js";
import { bars } from "./chart.js";

export const OF_JOB = ["project", "branch", "pipeline", "nodeset"];
const TIMES = [7, 30, 90, 365], USUAL = 30, BY_WEEK = 90, MOST = 365;
let unfolded = false;
export const daysOf = (chosen) => Math.min(MOST, Math.max(1, Math.trunc(Number(chosen.get("days"))) || USUAL));
const unit = (days) => (days > BY_WEEK ? "week" : days > 1 ? "day" : "hour"), names = { week: "Week from", day: "Day", hour: "Hour" };

// What to ask the server for; without a job, of all.
export function flakily(chosen, job = "") {
  const days = daysOf(chosen), query = new URLSearchParams({ ...(job && { job_name: job }), days: String(days), slot: unit(days) });
  for (const key of OF_JOB) if (chosen.get(key)) query.set(key, chosen.get(key));
  return query;
}

const share = (some, all) => (all ? ` (${Math.round(100 * some / all)} %)` : "");
const told = (one, job) => `${one.flaky} of ${one.trees} ${job ? "" : "jobs on "}states of the code${share(one.flaky, one.trees)}`;
const at = (one, name) => (name === "hour" ? one.slice(0, 16).replace("T", " ") : one.slice(0, 10));

// Every slot of the time, also those in which nothing ended.
function whole(found, name) {
  const first = +instant(found.start_time), last = +instant(found.end_time), known = new Map(found.slots.map((one) => [one.start_time, one])), all = [];
  for (let now = first; now < last; now += found.slot_seconds * 1000) {
    const start = new Date(now).toISOString().slice(0, 19), one = known.get(start);
    all.push({ at: start, part: one && one.trees ? one.flaky / one.trees : null, text: `${at(start, name)}: ${one ? `${told(one, found.job_name)} flaky, ${one.failed} of ${one.builds} builds failed` : "no build ended"}` });
  }
  return all;
}

// `choice`: whether the time is chosen here.
export function daily(found, chosen, choice = true) {
  const job = found.job_name, days = daysOf(chosen), name = unit(days), flaky = found.slots.reduce((all, one) => all + one.flaky, 0), trees = found.slots.reduce((all, one) => all + one.trees, 0);
  const others = TIMES.map((n) => (n === days ? el("strong", {}, `${n} days`) : el("a", { href: `?${new URLSearchParams({ ...Object.fromEntries(chosen), days: String(n) })}` }, `${n} days`)));
  const rows = found.slots.map((one) => [at(one.start_time, name), one.flaky ? told(one, job) : `0 of ${one.trees}`, one.failed ? `${one.failed}${share(one.failed, one.builds)}` : "", String(one.builds), one.retried ? String(one.retried) : ""]).reverse();
  const label = `Flaky ${job ? "" : "jobs on "}states of the code by ${name}, of the last ${days === 1 ? "day" : `${days} days`}: ${told({ flaky, trees }, job)}; the table below has each ${name}`;
  return [el("h2", {}, job ? `How flaky is it, by ${name}?` : `How flaky are the jobs, by ${name}?`), el("p", { class: "small" }, ...(choice ? ["Of the last ", ...others.flatMap((one, n) => (n ? [" · ", one] : [one])), ". "] : []),
    `A state of the code counts once${job ? "" : " for each job"}, when the job first ends on it, and is flaky if the job failed there and passed later. Times are UTC.`),
    found.complete_from ? el("p", { class: "note" }, `There is more than one answer can count: only what ended from ${found.complete_from} UTC on is counted.`) : "",
    rows.length ? bars(whole(found, name), label) : el("p", { class: "empty" }, "No build has ended in this time."),
    rows.length ? el("details", { open: unfolded, ontoggle: ({ target }) => { unfolded = target.open; } }, el("summary", {}, "The same as a table"), table([names[name], "Flaky", "Failed", "Builds", "Tried again"], rows, "")) : ""];
}
