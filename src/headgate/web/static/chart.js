// Charts of durations over time, one point each. Pages also show the same data as a table.
import { el, instant, look, took } from "./page.js";

const beside = (name) => new URL(name, import.meta.url).href;
document.head.append(el("link", { rel: "stylesheet", href: beside("./uPlot.css") }));
// The library is not a module: it defines one global variable.
await new Promise((there, failed) => { document.head.append(el("script", { src: beside("./uPlot.js"), onload: there, onerror: () => failed(new Error("The charts cannot be loaded.")) })); });
const { uPlot } = /** @type {any} */ (window);
// Possible distances between the grid lines of an axis in seconds.
const STEPS = [.1, .2, .5, ...[1, 2, 5, 10, 15, 30].flatMap((n) => [n, n * 60]), ...[1, 2, 3, 6, 12, 24, 48, 120, 240, 1200, 2400, 12000, 120000].map((n) => n * 3600)].sort((a, b) => a - b);
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// points: { at, seconds, result, name, go }, in any order; `go` is called for the point that is clicked.
export function chart(points, label) {
  const sorted = points.filter((one) => one.at && one.seconds !== null).map((one) => ({ ...one, x: +instant(one.at) / 1000 })).sort((a, b) => a.x - b.x);
  const caption = el("p", { class: "small", role: "status" }, "Point at a mark to see its build; click to open it."), holder = el("div", { class: "chart", role: "img", "aria-label": label });
  if (sorted.length < 2) return el("p", { class: "empty" }, "There are too few builds for a chart.");
  const kinds = [["good", "--good", "passed"], ["bad", "--bad", "failed"]];
  const of = (kind) => sorted.map((one) => ((look(one.result) === "good") === (kind === "good") ? one.seconds : null));
  const axis = { stroke: style("--soft"), grid: { stroke: style("--line"), width: 1 }, ticks: { stroke: style("--line") }, font: "12px system-ui" };
  const options = {
    width: 600, height: 220, legend: { show: false }, cursor: { drag: { x: true, y: false }, points: { size: 9 } },
    scales: { y: { range: (_, __, most) => [0, most * 1.08 || 1] } },
    axes: [axis, { ...axis, size: 70, incrs: STEPS, values: (_, ticks) => ticks.map((s) => (s % 1 ? `${s.toFixed(1)}s` : took(s * 1000))) }],
    series: [{}, ...kinds.map(([, colour, name]) => ({ label: name, stroke: style(colour), paths: () => null, points: { show: true, size: name === "passed" ? 5 : 7, fill: style(colour) } }))],
    hooks: { setCursor: [(plot) => {
      const one = sorted[plot.cursor.idx];
      if (one) caption.textContent = `${one.name}: ${one.result}, ${took(one.seconds * 1000)}, ${instant(one.at).toLocaleString()}`;
    }] },
  };
  const plot = new uPlot(options, [sorted.map((one) => one.x), ...kinds.map(([kind]) => of(kind))], holder);
  plot.over.addEventListener("click", () => { const one = sorted[plot.cursor.idx]; if (one && plot.cursor.left >= 0) one.go(); });
  new ResizeObserver(() => holder.clientWidth && plot.setSize({ width: holder.clientWidth, height: 220 })).observe(holder);
  return el("div", {}, holder, caption);
}

// slots: { at, part, text, mark }, one for each slot of time, in order; `part` is between 0 and 1, or null if there is no data. `shown` adapts the chart to other numbers: whether they are `seconds`, how to format `values`, the `least` maximum of the axis, whether there are `marks`, the `colour`.
export function bars(slots, label, shown = {}) {
  const caption = el("p", { class: "small", role: "status" }, "Point at a bar to see its numbers."), holder = el("div", { class: "chart still", role: "img", "aria-label": label });
  const first = +instant(slots[0].at) / 1000, step = slots.length > 1 ? +instant(slots[1].at) / 1000 - first : 86_400, colour = style(shown.colour ?? "--bad");
  const axis = { stroke: style("--soft"), grid: { stroke: style("--line"), width: 1 }, ticks: { stroke: style("--line") }, font: "12px system-ui" };
  const height = shown.least ? (most) => Math.max(shown.least, most * 1.08) : (most) => Math.min(1, Math.max(.1, most * 1.08)), written = shown.seconds ? (s) => (s % 1 ? `${s.toFixed(1)}s` : took(s * 1000)) : shown.values ?? ((part) => `${Math.round(part * 100)} %`);
  const options = {
    width: 600, height: 220, legend: { show: false }, cursor: { drag: { x: false, y: false }, points: { show: false } },
    scales: { x: { range: () => [first - step / 2, first + (slots.length - .5) * step] }, y: { range: (_, __, most) => [0, height(most)] } },
    axes: [axis, { ...axis, size: 70, ...(shown.seconds ? { incrs: STEPS } : {}), values: (_, ticks) => ticks.map(written) }],
    series: [{}, { stroke: colour, fill: colour, width: 0, paths: uPlot.paths.bars({ size: [.8, 40] }), points: { show: false } },
      ...(shown.marks ? [{ stroke: style("--ink"), paths: () => null, points: { show: true, size: 5, fill: style("--ink") } }] : [])],
    hooks: { setCursor: [(plot) => { const one = slots[plot.cursor.idx]; if (one) caption.textContent = one.text; }] },
  };
  const numbers = ["part", ...(shown.marks ? ["mark"] : [])].map((key) => slots.map((one) => one[key]));
  // times are shown in UTC, as the slots are in UTC
  const plot = new uPlot({ ...options, tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC") }, [slots.map((one) => +instant(one.at) / 1000), ...numbers], holder);
  new ResizeObserver(() => holder.clientWidth && plot.setSize({ width: holder.clientWidth, height: 220 })).observe(holder);
  return el("div", {}, holder, caption);
}

// The quantile of sorted numbers; undefined if there are none.
export const quantile = (sorted, part) => sorted[Math.min(sorted.length - 1, Math.floor(part * sorted.length))];

// Rows of builds grouped by a key: [name, number, number of failures, median and 95th percentile of the duration].
export function counted(found, key) {
  const apart = new Map();
  for (const one of found) apart.set(key(one), [...(apart.get(key(one)) ?? []), one]);
  return [...apart].sort((a, b) => b[1].length - a[1].length).map(([name, some]) => {
    const times = some.filter((one) => one.seconds !== null).map((one) => one.seconds).sort((a, b) => a - b), failed = some.filter((one) => look(one.result) === "bad").length;
    return [name, String(some.length), failed ? `${failed} (${Math.round(100 * failed / some.length)} %)` : "", times.length ? took(quantile(times, .5) * 1000) : "", times.length ? took(quantile(times, .95) * 1000) : ""];
  });
}
