import { el, link, passed, short, took, word } from "./page.js";
import { listing } from "./listing.js";
listing("builds", "Builds", ["project", "pipeline", "job_name", "change", "branch", "result"], ["Job", "Result", "Project", "Change", "Branch", "Pipeline", "Took", "Ended"], (b) => [
  link("build", b.uuid, b.job_name), el("span", {}, word(b.result), b.voting ? "" : el("span", { class: "small" }, " non-voting"), b.final || b.result === null ? "" : el("span", { class: "small" }, " superseded")), short(b.ref.project), link("buildset", b.buildset.uuid, b.ref.change || b.ref.ref), b.ref.branch, b.pipeline,
  b.duration === null ? "" : took(b.duration * 1000), passed(b.end_time)]);
