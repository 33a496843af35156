// How quickly changes came through over time, and what that took, as charts and as a table of the same numbers.
import { el, took } from "./page.js";
import { bars } from "./chart.js";
import { asTable, daysOf, everySlot, incomplete, period, share, unit } from "./slots.js";

export const seconds = (s) => (s === null ? "" : took(s * 1000));
export const each = (n) => (n === null ? "" : n.toFixed(1));

export function throughly(chosen, only) {
  const days = daysOf(chosen);
  return new URLSearchParams([["days", String(days)], ["slot", unit(days)], ...only.map((name) => [name, chosen.get(name)])]);
}

// What is drawn: its name, the height of a bar (null: none), what is said of a slot, and how numbers are shown.
/** @type {[string, Function, Function, Record<string, any>][]} */
const DRAWN = [
  ["Time to land", (one) => one.to_end_median_s, (one) => (one.passed ? `${one.passed} passed, half within ${seconds(one.to_end_median_s)}, 95 of 100 within ${seconds(one.to_end_95_s)}` : "none passed"), { seconds: true, least: 1, marks: (one) => one.to_end_95_s, colour: "--good" }],
  ["Tested anew", (one) => one.resets / one.buildsets, (one) => `${one.resets} of ${one.buildsets}${share(one.resets, one.buildsets)} were tested anew`, {}],
  ["Build time lost by that", (one) => (one.seconds ? one.seconds_lost / one.seconds : null), (one) => `${seconds(one.seconds_lost)} of ${seconds(one.seconds)} of builds${share(one.seconds_lost, one.seconds)} were for nothing`, {}],
  ["Builds for each that passed", (one) => one.builds_per_passed, (one) => (one.passed ? `${one.builds} builds, ${each(one.builds_per_passed)} for each of ${one.passed} that passed` : `${one.builds} builds, none passed`), { values: (n) => String(Math.round(n * 10) / 10), least: 1, colour: "--busy" }],
];

export function overTime(found, chosen) {
  const days = daysOf(chosen), slot = unit(days);
  const drawn = ([name, height, textOf, shown]) => el("section", {}, el("h3", {}, name), bars(
    everySlot(found, slot, "nothing ended", textOf).map(({ at, one, textOf: text }) => ({ at, part: one ? height(one) : null, mark: one && shown.marks ? shown.marks(one) : null, text })),
    `${name}, by ${slot}, of the last ${period(days)}; the table below has each ${slot}`, shown));
  return [el("h2", {}, `How was it, by ${slot}?`), el("p", { class: "small" }, "What ended counts where it ended; bars of times are medians, and a mark above is what 95 of 100 did not exceed. Times are UTC."), incomplete(found),
    ...(found.slots.length ? [el("div", { class: "charts" }, ...DRAWN.map(drawn)), asTable("throughput", found, slot, ["Ended", "Passed", "Half within", "95 of 100 within", "Tested anew", "Lost", "Builds each"],
      (one) => [String(one.buildsets), one.passed ? String(one.passed) : "", seconds(one.to_end_median_s), seconds(one.to_end_95_s), one.resets ? `${one.resets}${share(one.resets, one.buildsets)}` : "", one.seconds_lost ? `${seconds(one.seconds_lost)}${share(one.seconds_lost, one.seconds)}` : "", each(one.builds_per_passed)])]
      : [el("p", { class: "empty" }, "Nothing has ended in this time.")])];
}
