// Comments of jobs on lines of files.
import { el, link } from "./page.js";
import { odd } from "./odd.js";

const LOOK = { error: "bad", warning: "busy", info: "mute" };

/**
 * One comment: its level, its message, and the job that made it.
 * @param {{ level: string, message: string, build: string, job_name: string, pipeline: string }} one
 * @param {boolean} named whether to show the job
 */
export const remarked = (one, named) => el("div", { class: "jobremark" },
  one.level ? el("span", { class: `result ${LOOK[one.level] ?? "mute"}` }, one.level) : "", one.level ? " " : "", el("span", { class: "remarktext" }, odd(one.message)),
  named ? el("span", { class: "small" }, " — ", link("build", one.build, one.job_name), ` in ${one.pipeline}`) : "");
