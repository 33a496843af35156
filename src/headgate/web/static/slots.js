// Slots of time of equal length in UTC, as the server counts them, and their names.
import { el, instant, table } from "./page.js";

const USUAL = 30, BY_WEEK = 90, MOST = 365;
export const PERIODS = [7, 30, 90, 365];
export const daysOf = (chosen) => Math.min(MOST, Math.max(1, Math.trunc(Number(chosen.get("days"))) || USUAL));
export const unit = (days) => (days > BY_WEEK ? "week" : days > 1 ? "day" : "hour");
export const period = (days) => (days === 1 ? "day" : `${days} days`);
export const nameOf = (start, slot) => (slot === "hour" ? start.slice(0, 16).replace("T", " ") : start.slice(0, 10));
export const share = (some, all) => (all ? ` (${Math.round(100 * some / all)} %)` : "");
const HEADS = { week: "Week from", day: "Day", hour: "Hour" };

// All slots of the period, including empty ones and those that were not counted: [{ at, one, text }], where `tell` returns the description in `text`.
export function everySlot(found, slot, nothing, tell) {
  const last = +instant(found.end_time), from = found.complete_from ? +instant(found.complete_from) : 0, known = new Map(found.slots.map((one) => [one.start_time, one])), all = [];
  for (let now = +instant(found.start_time), next; now < last; now = next) {
    next = now + found.slot_seconds * 1000;
    const at = new Date(now).toISOString().slice(0, 19), one = known.get(at), partly = now < from ? `, counted from ${found.complete_from.replace("T", " ")} on` : "";
    all.push({ at, one, text: `${nameOf(at, slot)}: ${next <= from ? "not counted" : `${one ? tell(one) : nothing}${partly}`}` });
  }
  return all;
}

export const incomplete = (found) => (found.complete_from ? el("p", { class: "note" }, `There are too many buildsets to count: only those that ended since ${found.complete_from.replace("T", " ")} UTC are included.`) : "");

// The numbers of a chart as a table, latest first; once opened, it stays open when the page is redrawn. `cells` returns the cells of a row after its time.
const opened = new Set();
export function asTable(name, found, slot, heads, cells) {
  const rows = found.slots.map((one) => [nameOf(one.start_time, slot), ...cells(one)]).reverse();
  return el("details", { open: opened.has(name), ontoggle: ({ target }) => { opened[target.open ? "add" : "delete"](name); } }, el("summary", {}, "The same as a table"), table([HEADS[slot], ...heads], rows, ""));
}
