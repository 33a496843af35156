import { api, el, link, main, nav, short, table, took } from "./page.js";
import { watch } from "./live.js";
nav("health", "Flaky jobs and resets");
const days = Number(new URLSearchParams(location.search).get("days")) || 30, body = el("div");
const share = (part, total) => (total ? `${Math.round((100 * part) / total)} %` : "");
const spent = (seconds) => took(seconds * 1000);
main.append(el("h1", {}, "Flaky jobs and resets"), el("p", { class: "small" }, `In the last ${days} days. A job is flaky on a state of the code if it failed on it and passed later.`), body);
watch(["job-health", "reset-costs"].map((what) => `${api}/${what}?days=${days}`), body, (jobs, resets) => [
  el("h2", {}, "Jobs"), table(["Job", "Project", "Builds", "Failed", "Flaky", "Retries", "Took", "Lost"], jobs.map((j) => [link("job", j.job_name, j.job_name), short(j.project), String(j.builds),
    j.failed ? `${j.failed} (${share(j.failed, j.builds)})` : "", j.flaky ? el("span", { class: "result bad" }, `${j.flaky} of ${j.trees} (${share(j.flaky, j.trees)})`) : "", j.retried ? String(j.retried) : "", spent(j.seconds), j.seconds_lost ? spent(j.seconds_lost) : ""]), "No build has ended yet."),
  el("h2", {}, "Changes tested again"), el("p", { class: "small" }, "A change is tested again if a change ahead of it fails; the builds that it had until then are lost."),
  table(["Project", "Pipeline", "Buildsets", "Reset", "Builds lost", "Time lost"], resets.map((r) => [short(r.project), link("status", r.pipeline, r.pipeline), String(r.buildsets), r.resets ? `${r.resets} (${share(r.resets, r.buildsets)})` : "",
    r.builds_lost ? String(r.builds_lost) : "", r.seconds_lost ? `${spent(r.seconds_lost)} (${share(r.seconds_lost, r.seconds)})` : ""]), "No buildset has ended yet.")], 60_000);
