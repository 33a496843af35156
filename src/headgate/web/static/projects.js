import { api, el, link, main, nav, table } from "./page.js";
import { watch } from "./live.js";
nav("projects", "Projects");
const body = el("div");
main.append(el("h1", {}, "Projects"), body);
watch(`${api}/projects`, body, (found) => table(["Project", "Connection", "Kind"], found.map((p) => [link("project", p.canonical_name, p.name), p.connection_name, p.type === "config" ? "configuration" : "code"]), "This tenant has no projects."), 30_000);
