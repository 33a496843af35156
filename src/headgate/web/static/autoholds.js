import { api, el, link, main, nav, sent, short, since, table } from "./page.js";
import { watch } from "./live.js";
import { button } from "./acts.js";
nav("autoholds", "Autoholds");
const body = el("div");
const end = (h) => button({ permission: "autohold", label: "Give back", name: `Give back ${h.id}`, title: `Give back what autohold ${h.id} keeps?`, what: "Work directories are removed and machines go back to others. Nothing is tested anew.", send: ({ reason }) => sent("DELETE", `${api}/autohold/${h.id}${reason ? `?reason=${encodeURIComponent(reason)}` : ""}`), done: () => again() });
const where = (h) => (h.directory ? [el("br"), el("code", {}, `${h.executor}:${h.directory}`)] : []);
const held = (h) => el("li", {}, link("build", h.build, h.build.slice(0, 8)), h.over ? " given back " : " is given back ", since(h.until * 1000), h.nodes.length ? ` with ${h.nodes.join(", ")}` : "", h.over ? [] : where(h));
main.append(el("h1", {}, "Autoholds"), el("p", { class: "small" }, "Builds whose work directory and machines are kept when they fail. Ask for it with ", el("code", {}, "headgate autohold PROJECT JOB"), "; give back with ", el("code", {}, "headgate autohold delete ID"), "."), body);
const again = watch(`${api}/autohold`, body, (found) => table(["Id", "Project", "Job", "Refs", "Held", "Why", "Who", "Builds"], found.map((h) => [el("code", {}, h.id), link("project", h.project, short(h.project)), link("job", h.job, h.job), h.ref_filter === ".*" ? "all" : el("code", {}, h.ref_filter),
  `${h.current_count} of ${h.max_count}`, h.reason ?? "", h.who, [h.nodes.length ? el("ul", { class: "plain" }, h.nodes.map(held)) : "none yet ", end(h)]]), "Nothing is to be held."), 10_000);
