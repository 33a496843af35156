import { el, link, passed, short, took, word } from "./page.js";
import { listing } from "./listing.js";
listing("builds", "Builds", ["project", "pipeline", "job_name", "change", "branch", "result"], ["Job", "Project", "Change", "Branch", "Pipeline", "Result", "Took", "Ended"], (b) => [
  link("build", b.uuid, b.job_name), short(b.ref.project), link("buildset", b.buildset.uuid, b.ref.change || b.ref.ref), b.ref.branch, b.pipeline, el("span", {}, word(b.result), b.voting ? "" : el("span", { class: "small" }, " non-voting"), b.final ? "" : el("span", { class: "small" }, " superseded")),
  b.duration === null ? "" : took(b.duration * 1000), passed(b.end_time)]);
