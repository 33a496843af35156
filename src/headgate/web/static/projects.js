import { api, fetched, link, main, nav, el, table, trouble } from "./page.js";
nav("projects", "Projects");
try {
  const found = await fetched(`${api}/projects`);
  main.append(el("h1", {}, "Projects"), table(["Project", "Connection", "Kind"], found.map((p) => [link("project", p.canonical_name, p.name), p.connection_name, p.type === "config" ? "configuration" : "code"]), "This tenant has no projects."));
} catch (error) { trouble(error); }
