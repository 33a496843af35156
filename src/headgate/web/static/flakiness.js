// The flakiness of a job over time, or of all jobs of a pipeline or project, as a chart and as a table of the same numbers.
import { el } from "./page.js";
import { bars } from "./chart.js";
import { PERIODS, asTable, daysOf, everySlot, incomplete, period, share, unit } from "./slots.js";

export const OF_JOB = ["project", "branch", "pipeline", "nodeset"];

// The query for the server; without a job, for all jobs.
export function flakily(chosen, job = "") {
  const days = daysOf(chosen), query = new URLSearchParams({ ...(job && { job_name: job }), days: String(days), slot: unit(days) });
  for (const key of OF_JOB) if (chosen.get(key)) query.set(key, chosen.get(key));
  return query;
}

const flakyText = (one, job) => `${one.flaky} of ${one.trees} ${job ? "" : "jobs on "}states of the code${share(one.flaky, one.trees)}`;

// `choice`: whether to offer a choice of the period.
export function daily(found, chosen, choice = true) {
  const job = found.job_name, days = daysOf(chosen), slot = unit(days), flaky = found.slots.reduce((all, one) => all + one.flaky, 0), trees = found.slots.reduce((all, one) => all + one.trees, 0);
  const others = PERIODS.map((n) => (n === days ? el("strong", {}, `${n} days`) : el("a", { href: `?${new URLSearchParams({ ...Object.fromEntries(chosen), days: String(n) })}` }, `${n} days`)));
  const label = `Flaky ${job ? "" : "jobs on "}states of the code by ${slot}, of the last ${period(days)}: ${flakyText({ flaky, trees }, job)}; the table below has each ${slot}`;
  const slots = everySlot(found, slot, "no build ended", (one) => `${flakyText(one, job)} flaky, ${one.failed} of ${one.builds} builds failed`).map(({ at, one, text }) => ({ at, part: one?.trees ? one.flaky / one.trees : null, text }));
  return [el("h2", {}, job ? `How flaky is it, by ${slot}?` : `How flaky are the jobs, by ${slot}?`), el("p", { class: "small" }, ...(choice ? ["Of the last ", ...others.flatMap((one, n) => (n ? [" · ", one] : [one])), ". "] : []),
    `A state of the code counts once${job ? "" : " for each job"}, when a build first ends on it, and is flaky if the job failed on it and passed later. Times are in UTC.`),
    incomplete(found),
    found.slots.length ? bars(slots, label) : el("p", { class: "empty" }, "No build ended in this period."),
    found.slots.length ? asTable("flakiness", found, slot, ["Flaky", "Failed", "Builds", "Retries"],
      (one) => [one.flaky ? flakyText(one, job) : `0 of ${one.trees}`, one.failed ? `${one.failed}${share(one.failed, one.builds)}` : "", String(one.builds), one.retried ? String(one.retried) : ""]) : ""];
}
