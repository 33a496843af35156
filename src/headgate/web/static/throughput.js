// How quickly changes passed over time, and how much work that took, as charts and as a table of the same numbers.
import { el, took } from "./page.js";
import { bars } from "./chart.js";
import { asTable, daysOf, everySlot, incomplete, period, share, unit } from "./slots.js";

export const seconds = (s) => (s === null ? "" : took(s * 1000));
export const each = (n) => (n === null ? "" : n.toFixed(1));

export function throughly(chosen, only) {
  const days = daysOf(chosen);
  return new URLSearchParams([["days", String(days)], ["slot", unit(days)], ...only.map((name) => [name, chosen.get(name)])]);
}

// The charts: name, height of a bar (null: no bar), description of a slot, format of the numbers.
/** @type {[string, Function, Function, Record<string, any>][]} */
const DRAWN = [
  ["Time to land", (one) => one.to_end_median_s, (one) => (one.passed ? `${one.passed} passed, median ${seconds(one.to_end_median_s)}, 95th percentile ${seconds(one.to_end_95_s)}` : "none passed"), { seconds: true, least: 1, marks: (one) => one.to_end_95_s, colour: "--good" }],
  ["Resets", (one) => one.resets / one.buildsets, (one) => `${one.resets} of ${one.buildsets}${share(one.resets, one.buildsets)} were reset`, {}],
  ["Build time lost by resets", (one) => (one.seconds ? one.seconds_lost / one.seconds : null), (one) => `${seconds(one.seconds_lost)} of ${seconds(one.seconds)} of builds${share(one.seconds_lost, one.seconds)} were lost`, {}],
  ["Builds per passed buildset", (one) => one.builds_per_passed, (one) => (one.passed ? `${one.builds} builds, ${each(one.builds_per_passed)} for each of ${one.passed} passed` : `${one.builds} builds, none passed`), { values: (n) => String(Math.round(n * 10) / 10), least: 1, colour: "--busy" }],
];

export function overTime(found, chosen) {
  const days = daysOf(chosen), slot = unit(days);
  const drawn = ([name, height, textOf, shown]) => el("section", {}, el("h3", {}, name), bars(
    everySlot(found, slot, "nothing ended", textOf).map(({ at, one, text }) => ({ at, part: one ? height(one) : null, mark: one && shown.marks ? shown.marks(one) : null, text })),
    `${name}, by ${slot}, of the last ${period(days)}; the table below has each ${slot}`, shown));
  return [el("h2", {}, `Over time, by ${slot}`), el("p", { class: "small" }, "A buildset counts in the slot in which it ended. Bars of times are medians, and marks are 95th percentiles. Times are in UTC."), incomplete(found),
    ...(found.slots.length ? [el("div", { class: "charts" }, ...DRAWN.map(drawn)), asTable("throughput", found, slot, ["Ended", "Passed", "Median", "95th percentile", "Reset", "Lost", "Builds each"],
      (one) => [String(one.buildsets), one.passed ? String(one.passed) : "", seconds(one.to_end_median_s), seconds(one.to_end_95_s), one.resets ? `${one.resets}${share(one.resets, one.buildsets)}` : "", one.seconds_lost ? `${seconds(one.seconds_lost)}${share(one.seconds_lost, one.seconds)}` : "", each(one.builds_per_passed)])]
      : [el("p", { class: "empty" }, "Nothing ended in this period.")])];
}
