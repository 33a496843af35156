import { api, el, fetched, link, look, nav, short, took } from "./common.js";
nav("builds");
const main = document.getElementById("main"), body = el("tbody");
const names = ["project", "pipeline", "job_name", "result"];
const query = new URLSearchParams(location.search);
const inputs = names.map((name) => el("input", { type: "search", placeholder: name.replace("_", " "), "aria-label": name, value: query.get(name) ?? "", onchange: () => show() }));
main.append(el("h1", {}, "Builds"), el("div", { class: "tools" }, ...inputs),
  el("div", { class: "tablewrap" }, el("table", {}, el("thead", {}, el("tr", {}, ...["Job", "Project", "Change", "Pipeline", "Result", "Took", "Ended"].map((t) => el("th", {}, t)))), body)));

async function show() {
  const wanted = new URLSearchParams(names.map((name, n) => [name, inputs[n].value.trim()]).filter(([, v]) => v));
  history.replaceState(null, "", wanted.size ? `?${wanted}` : location.pathname);
  const rows = await fetched(`${api}/builds?${wanted}`);
  body.replaceChildren(...rows.map((b) => el("tr", {}, el("td", {}, link("build", b.uuid, b.job_name)), el("td", {}, short(b.ref.project)),
    el("td", {}, link("buildset", b.buildset.uuid, b.ref.change || b.ref.ref)), el("td", {}, b.pipeline), el("td", {}, el("span", { class: `result ${look(b.result)}` }, b.result)),
    el("td", {}, b.duration === null ? "" : took(b.duration * 1000)), el("td", {}, b.end_time ?? ""))));
  if (!rows.length) body.append(el("tr", {}, el("td", { colspan: 7 }, "No builds yet.")));
}
show();
