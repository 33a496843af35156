// How flaky a job is over time, or all jobs of a pipeline or project together, as a chart and as a table of the same numbers.
import { el } from "./page.js";
import { bars } from "./chart.js";
import { PERIODS, asTable, daysOf, everySlot, incomplete, period, share, unit } from "./slots.js";

export const OF_JOB = ["project", "branch", "pipeline", "nodeset"];

// What to ask the server for; without a job, of all.
export function flakily(chosen, job = "") {
  const days = daysOf(chosen), query = new URLSearchParams({ ...(job && { job_name: job }), days: String(days), slot: unit(days) });
  for (const key of OF_JOB) if (chosen.get(key)) query.set(key, chosen.get(key));
  return query;
}

const flakyText = (one, job) => `${one.flaky} of ${one.trees} ${job ? "" : "jobs on "}states of the code${share(one.flaky, one.trees)}`;

// `choice`: whether the time is chosen here.
export function daily(found, chosen, choice = true) {
  const job = found.job_name, days = daysOf(chosen), slot = unit(days), flaky = found.slots.reduce((all, one) => all + one.flaky, 0), trees = found.slots.reduce((all, one) => all + one.trees, 0);
  const others = PERIODS.map((n) => (n === days ? el("strong", {}, `${n} days`) : el("a", { href: `?${new URLSearchParams({ ...Object.fromEntries(chosen), days: String(n) })}` }, `${n} days`)));
  const label = `Flaky ${job ? "" : "jobs on "}states of the code by ${slot}, of the last ${period(days)}: ${flakyText({ flaky, trees }, job)}; the table below has each ${slot}`;
  const slots = everySlot(found, slot, "no build ended", (one) => `${flakyText(one, job)} flaky, ${one.failed} of ${one.builds} builds failed`).map(({ at, one, text }) => ({ at, part: one?.trees ? one.flaky / one.trees : null, text }));
  return [el("h2", {}, job ? `How flaky is it, by ${slot}?` : `How flaky are the jobs, by ${slot}?`), el("p", { class: "small" }, ...(choice ? ["Of the last ", ...others.flatMap((one, n) => (n ? [" · ", one] : [one])), ". "] : []),
    `A state of the code counts once${job ? "" : " for each job"}, when the job first ends on it, and is flaky if the job failed there and passed later. Times are UTC.`),
    incomplete(found),
    found.slots.length ? bars(slots, label) : el("p", { class: "empty" }, "No build has ended in this time."),
    found.slots.length ? asTable("flakiness", found, slot, ["Flaky", "Failed", "Builds", "Tried again"],
      (one) => [one.flaky ? flakyText(one, job) : `0 of ${one.trees}`, one.failed ? `${one.failed}${share(one.failed, one.builds)}` : "", String(one.builds), one.retried ? String(one.retried) : ""]) : ""];
}
