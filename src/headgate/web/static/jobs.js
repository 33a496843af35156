import { api, el, fetched, link, main, nav, table, trouble } from "./page.js";
nav("jobs", "Jobs");
try {
  const found = await fetched(`${api}/jobs`);
  const rows = () => found.filter((j) => `${j.name} ${j.description ?? ""} ${(j.tags ?? []).join(" ")}`.toLowerCase().includes(filter.value.trim().toLowerCase()))
    .map((j) => [link("job", j.name, j.name), j.variants[0]?.parent ?? "", j.variants.length > 1 ? String(j.variants.length) : "", j.description ?? ""]);
  const filter = el("input", { type: "search", placeholder: "Filter", "aria-label": "Filter jobs", oninput: () => draw() }), body = el("div");
  const draw = () => body.replaceChildren(table(["Job", "Parent", "Variants", "Description"], rows(), "No such job."));
  main.append(el("h1", {}, "Jobs"), el("div", { class: "tools" }, filter), body);
  draw();
} catch (error) { trouble(error); }
