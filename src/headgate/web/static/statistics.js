// How quickly changes pass, and how much work that takes, by pipeline and by project.
import { api, el, instant, link, main, nav, short, table, tenant } from "./page.js";
import { watch } from "./live.js";
import { chart } from "./chart.js";
import { daily, flakily } from "./flakiness.js";
import { PERIODS, daysOf, share } from "./slots.js";
import { each, overTime, seconds, throughly } from "./throughput.js";

const chosen = new URLSearchParams(location.search), days = daysOf(chosen), POINTS = 500;
const only = ["project", "pipeline"].filter((name) => chosen.get(name)), body = el("div");
const narrow = (more) => `?${new URLSearchParams({ ...Object.fromEntries(chosen), ...more })}`;
const cells = (one) => [String(one.buildsets), one.passed ? String(one.passed) : "", one.failed ? `${one.failed}${share(one.failed, one.failed + one.passed)}` : "", one.resets ? `${one.resets}${share(one.resets, one.buildsets)}` : "",
  seconds(one.to_start_median_s), seconds(one.to_end_median_s), seconds(one.to_end_95_s), each(one.builds_per_passed), one.seconds_lost ? `${seconds(one.seconds_lost)}${share(one.seconds_lost, one.seconds)}` : ""];
const HEADS = ["Buildsets", "Passed", "Failed", "Reset", "To first build", "To the end", "95th percentile", "Builds each", "Lost"];
const query = new URLSearchParams([["days", String(days)], ...only.map((name) => [name, chosen.get(name)])]);

nav("statistics", "Statistics");
const field = (name) => el("input", { type: "search", name, placeholder: name, "aria-label": name[0].toUpperCase() + name.slice(1), value: chosen.get(name) ?? "" });
const period = el("select", { name: "days", "aria-label": "Days" }, [1, ...PERIODS].map((n) => el("option", { value: n, selected: n === days }, n === 1 ? "last day" : `last ${n} days`)));
main.append(el("h1", {}, "Statistics"), el("form", { class: "tools filters", role: "search" }, field("pipeline"), field("project"), period, el("button", {}, "Show")),
  el("p", { class: "small" }, "Times are from the event to the end, including resets: the median and the 95th percentile of buildsets that passed. \u201cBuilds each\u201d is the number of builds per passed buildset. The same numbers as JSON: ", el("a", { href: `${api}/statistics?${query}` }, el("code", {}, "statistics")), " and ", el("a", { href: `${api}/throughput?${throughly(query, only)}` }, el("code", {}, "throughput")), "."), body);

function draw(found, passed, flakiness, slots) {
  const pipelines = found.filter((one) => !one.project), projects = found.filter((one) => !one.pipeline), both = found.filter((one) => one.project && one.pipeline);
  const points = passed.filter((one) => one.event_timestamp && one.last_build_end_time && one.last_build_end_time >= slots.start_time).map((one) => ({ at: one.last_build_end_time, seconds: (+instant(one.last_build_end_time) - +instant(one.event_timestamp)) / 1000, result: one.result,
    name: `${short(one.refs[0].project)} ${one.refs[0].change ?? one.refs[0].ref} in ${one.pipeline}`, go: () => location.assign(`/t/${encodeURIComponent(tenant)}/buildset/${encodeURIComponent(one.uuid)}`) }));
  const apart = (name) => el("a", { href: narrow({ project: short(name) }) }, short(name));
  return [el("h2", {}, "Pipelines"), table(["Pipeline", ...HEADS], pipelines.map((one) => [el("a", { href: narrow({ pipeline: one.pipeline }) }, one.pipeline), ...cells(one)]), "No buildset has ended in this time."),
    el("h2", {}, "Durations of the latest buildsets that passed"), chart(points, `Time from the event to the end, of the last ${points.length} buildsets that passed in this period`),
    ...overTime(slots, query), ...daily(flakiness, query, false),
    el("h2", {}, "Projects"), table(["Project", ...HEADS], projects.map((one) => [apart(one.project), ...cells(one)]), "No buildset has ended in this time."),
    el("h2", {}, "Projects in pipelines"), table(["Project", "Pipeline", ...HEADS], both.map((one) => [link("project", one.project, short(one.project)), link("status", one.pipeline, one.pipeline), ...cells(one)]), "No buildset has ended in this time.")];
}
const recent = new URLSearchParams([["result", "SUCCESS"], ["final", "true"], ["limit", String(POINTS)], ...only.map((name) => [name, chosen.get(name)])]);
watch([`${api}/statistics?${query}`, `${api}/buildsets?${recent}`, `${api}/job-flakiness?${flakily(query)}`, `${api}/throughput?${throughly(query, only)}`], body, draw, 60_000);
