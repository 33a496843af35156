import { api, el, facts, link, main, nav, short, subject, table, tenant, took, when, word } from "./page.js";
import { watch } from "./live.js";
import { chart, counted } from "./chart.js";
import { OF_JOB, daily, flakily } from "./flakiness.js";
nav("jobs", subject);

const MOST = 500, LISTED = 20, AGAIN_MS = 30_000;
const name = encodeURIComponent(subject), base = `/t/${encodeURIComponent(tenant)}`;
const chosen = new URLSearchParams(location.search);

// Statistics of the job's builds: of all, or of one project, branch, pipeline or nodeset.
const query = new URLSearchParams({ job_name: subject, limit: String(MOST) });
for (const key of OF_JOB) if (chosen.get(key)) query.set(key, chosen.get(key));
function lately(times, health, flakiness) {
  const builds = times.map((b) => ({ ...b, at: b.end_time, seconds: b.duration, name: `${short(b.project)} ${b.branch ?? b.ref}`, go: () => location.assign(`${base}/build/${b.uuid}`) }));
  const kinds = [["Project", (b) => short(b.project), "project"], ["Branch", (b) => b.branch ?? b.ref, "branch"], ["Pipeline", (b) => b.pipeline, "pipeline"], ["Nodes", (b) => b.nodeset ?? "", "nodeset"]];
  const only = [...chosen].filter(([key]) => OF_JOB.includes(key));
  const sum = (key) => health.reduce((all, one) => all + one[key], 0);
  const part = (some, all) => (some ? `${some} of ${all} (${Math.round(100 * some / all)} %)` : "");
  return [el("h2", {}, "Durations and flakiness"),
    only.length ? el("p", {}, `Only of ${only.map(([key, value]) => `${key} ${value}`).join(", ")}. `, el("a", { href: location.pathname }, "Show all")) : "",
    facts([["Failed", part(sum("failed"), sum("builds"))], ["Flaky", part(sum("flaky"), sum("trees")) && `${part(sum("flaky"), sum("trees"))} states of the code on which it failed passed later`], ["Retries", sum("retried") ? String(sum("retried")) : ""], ["Time lost", sum("seconds_lost") ? `${took(sum("seconds_lost") * 1000)} of ${took(sum("seconds") * 1000)}` : ""]]),
    chart(builds, `How long the last ${builds.length} builds took`),
    ...daily(flakiness, chosen),
    ...kinds.flatMap(([title, key, filter]) => {
      const rows = counted(builds, key);
      return rows.length > 1 || title === "Project" ? [table([title, "Builds", "Failed", "Median", "95th percentile"], rows.map(([first, ...rest]) => [first ? el("a", { href: `?${new URLSearchParams([...chosen.entries(), [filter, first]])}` }, first) : first || "none", ...rest]), "No build has ended yet.")] : [];
    }),
    el("h2", {}, "Builds"), table(["Result", "Project", "Branch", "Pipeline", "Took", "Ended"], times.slice(0, LISTED).map((b) => [el("a", { href: `${base}/build/${b.uuid}` }, word(b.result)), short(b.project), b.branch ?? b.ref, b.pipeline, b.duration === null ? "" : took(b.duration * 1000), when(b.end_time)]), "No build has ended yet."),
    el("p", {}, el("a", { href: `${base}/builds?job_name=${name}` }, "All builds of this job"))];
}

const card = (v) => el("section", { class: "card" }, facts([["Defined in", `${v.source_context.project} ${v.source_context.branch} ${v.source_context.path}:${v.source_context.line}`],
  ["Parent", v.parent ? link("job", v.parent, v.parent) : ""], ["Branches", (v.branches ?? []).join(", ")]]), el("pre", {}, JSON.stringify(v.body, null, 2)));
const past = el("section"), written = el("section");
main.append(el("h1", {}, subject), past, written);
watch([`${api}/build-times?${query}`, `${api}/job-health?${new URLSearchParams([...query].filter(([key]) => key !== "limit"))}`, `${api}/job-flakiness?${flakily(chosen, subject)}`], past, lately, AGAIN_MS);
watch(`${api}/job/${subject.split("/").map(encodeURIComponent).join("/")}`, written, (variants) => [el("h2", {}, "Definition"), ...variants.map(card)], AGAIN_MS);
