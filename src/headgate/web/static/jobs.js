import { api, el, link, main, nav, table } from "./page.js";
import { renew, watch } from "./live.js";
nav("jobs", "Jobs");
let found = [];
const rows = () => found.filter((j) => `${j.name} ${j.description ?? ""} ${(j.tags ?? []).join(" ")}`.toLowerCase().includes(filter.value.trim().toLowerCase()))
  .map((j) => [link("job", j.name, j.name), j.variants[0]?.parent ?? "", j.variants.length > 1 ? String(j.variants.length) : "", j.description ?? ""]);
const filter = el("input", { type: "search", placeholder: "Filter", "aria-label": "Filter jobs", oninput: () => renew(body, draw()) }), body = el("div");
const draw = () => table(["Job", "Parent", "Variants", "Description"], rows(), "No jobs match.");
main.append(el("h1", {}, "Jobs"), el("div", { class: "tools" }, filter), body);
watch(`${api}/jobs`, body, (now) => { found = now; return draw(); }, 30_000);
