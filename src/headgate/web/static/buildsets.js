import { el, instant, link, passed, short, took, word } from "./page.js";
import { listing } from "./listing.js";
listing("buildsets", "Buildsets", ["project", "pipeline", "change", "branch", "result"], ["Change", "Result", "Project", "Branch", "Pipeline", "Took", "Ended"], (b) => [
  link("buildset", b.uuid, (b.refs[0].change || b.refs[0].ref) + (b.refs.length > 1 ? ` and ${b.refs.length - 1} more` : "")), el("span", {}, word(b.result), b.final || b.result === null ? "" : el("span", { class: "small" }, " superseded")), short(b.refs[0].project), b.refs[0].branch, b.pipeline,
  b.event_timestamp && b.last_build_end_time ? took(+instant(b.last_build_end_time) - +instant(b.event_timestamp)) : "", passed(b.last_build_end_time)]);
