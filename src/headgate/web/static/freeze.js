// The jobs that a branch of a project runs in a pipeline, their dependencies, and the origin of each attribute of a job.
import { api, el, fetched, link, main, nav, table, showError } from "./page.js";
import { renew, watch } from "./live.js";
import { graph } from "./graph.js";

nav("freeze", "Job graph");
const query = new URLSearchParams(location.search);
const words = (text) => text.split("/").map(encodeURIComponent).join("/");
const field = (name, label, list) => el("input", { name, "aria-label": label, placeholder: label.toLowerCase(), required: true, value: query.get(name) ?? "", list, autocomplete: "off" });
const listed = (id, names) => el("datalist", { id }, [...new Set(names)].map((name) => el("option", { value: name })));
const form = el("form", { class: "tools filters", role: "search" }, field("project", "Project", "known-projects"), field("branch", "Branch", "known-branches"), field("pipeline", "Pipeline", "known-pipelines"), el("button", {}, "Show"));
const AGAIN_MS = 30_000, body = el("div"), one = el("section", { "aria-live": "polite" });
main.append(el("h1", {}, "Job graph"), el("p", { class: "small" }, "The jobs of a branch of a project in a pipeline as configured now, regardless of the files of a change. Click a job to see where each of its attributes is set."), form, body, one);

const place = `${api}/pipeline/${encodeURIComponent(query.get("pipeline") ?? "")}/project/${words(query.get("project") ?? "")}/branch/${words(query.get("branch") ?? "")}`;
// A value as a string; for a playbook its path, for a dependency its name.
const valueText = (value) => (typeof value === "string" ? value : value?.path ? `${value.path} of ${value.project} ${value.branch}` : value?.name && "soft" in value ? `${value.name}${value.soft ? " (if it runs)" : ""}` : JSON.stringify(value));
const written = (o) => (o.path ? `${o.project} ${o.branch} ${o.path}:${o.line}` : "built in");
const who = (o) => (o.step === 0 ? "variables of the project" : o.attaching ? `the project's use of ${o.job}` : `job ${o.job}`);

function attribute(a) {
  const of = (s, n) => el("li", { class: a.elements || n === a.settings.length - 1 ? null : "gone" }, el("code", {}, valueText(s.value)), el("span", { class: "small under" }, `${who(s.origin)}, ${written(s.origin)}`));
  return [el("code", {}, a.name), el("ul", { class: "plain" }, (a.elements ? a.settings : [...a.settings]).map(of))];
}

async function choose(name) {
  query.set("job", name);
  history.replaceState(null, "", `?${query}`);
  for (const node of body.querySelectorAll("button")) if (node.dataset.job) node.setAttribute("aria-pressed", String(node.dataset.job === name));
  try {
    const found = await fetched(`${place}/explain-job/${words(name)}`);
    renew(one, el("h2", {}, "Where ", link("job", name, name), " comes from"), ...found.errors.map((text) => el("pre", { class: "note bad", tabindex: 0 }, text)),
      el("ol", { class: "plain small" }, found.inheritance.map((o, n) => el("li", {}, `${n + 1}. ${who(o)}, ${written(o)}`))),
      table(["Attribute", "Value and origin"], found.attributes.map(attribute), "It sets no attributes."));
  } catch (error) { renew(one, el("p", { class: "note bad", role: "alert" }, error.message)); }
}

function show(jobs) {
  if (!jobs.length) return [el("p", { class: "empty" }, "No jobs run there.")];
  const needs = (job) => job.dependencies.map((d) => `${d.name}${d.soft ? " (if it runs)" : ""}`).join(", ");
  const button = (job) => el("button", { type: "button", class: "act", "data-job": job.name, "aria-pressed": "false", onclick: () => choose(job.name) }, job.name);
  if (jobs.some((job) => job.name === query.get("job"))) queueMicrotask(() => choose(query.get("job"))); // once it is drawn
  return [el("div", { class: "drawing", tabindex: 0, role: "group", "aria-label": "Job graph" }, graph(jobs, choose)), table(["Job", "Depends on"], jobs.map((job) => [button(job), needs(job)]), "")];
}

try {
  const [projects, pipelines] = await Promise.all([fetched(`${api}/projects`), fetched(`${api}/pipelines`)]);
  form.append(listed("known-projects", projects.map((p) => p.name)), listed("known-pipelines", pipelines.map((p) => p.name)));
  const project = projects.find((p) => [p.name, p.canonical_name].includes(query.get("project")));
  if (project) form.append(listed("known-branches", (await fetched(`${api}/project/${words(project.canonical_name)}`)).branches));
  if (query.get("project") && query.get("branch") && query.get("pipeline")) {
    document.title = `${query.get("project")} ${query.get("branch")} in ${query.get("pipeline")} · Headgate`;
    watch(`${place}/freeze-jobs`, body, show, AGAIN_MS);
  }
} catch (error) { showError(error); }
