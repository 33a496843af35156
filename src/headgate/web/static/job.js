import { api, el, facts, fetched, link, main, nav, subject, tenant, trouble } from "./page.js";
nav("jobs", subject);
try {
  const found = await fetched(`${api}/job/${subject.split("/").map(encodeURIComponent).join("/")}`);
  main.append(el("h1", {}, subject), el("p", {}, el("a", { href: `/t/${encodeURIComponent(tenant)}/builds?job_name=${encodeURIComponent(subject)}` }, "Builds of this job")));
  for (const v of found) main.append(el("section", { class: "card" }, facts([["Written in", `${v.source_context.project} ${v.source_context.branch} ${v.source_context.path}:${v.source_context.line}`],
    ["Parent", v.parent ? link("job", v.parent, v.parent) : ""], ["Branches", (v.branches ?? []).join(", ")]]), el("pre", {}, JSON.stringify(v.body, null, 2))));
} catch (error) { trouble(error); }
