import { el, instant, link, passed, short, took, word } from "./page.js";
import { listing } from "./listing.js";
listing("buildsets", "Buildsets", ["project", "pipeline", "change", "branch", "result"], ["Project", "Change", "Branch", "Pipeline", "Result", "Took", "Ended"], (b) => [
  short(b.refs[0].project), link("buildset", b.uuid, (b.refs[0].change || b.refs[0].ref) + (b.refs.length > 1 ? ` and ${b.refs.length - 1} more` : "")), b.refs[0].branch, b.pipeline, el("span", {}, word(b.result), b.final ? "" : el("span", { class: "small" }, " superseded")),
  b.event_timestamp && b.last_build_end_time ? took(instant(b.last_build_end_time) - instant(b.event_timestamp)) : "", passed(b.last_build_end_time)]);
