import { api, el, link, main, nav, sent, short, since, table } from "./page.js";
import { watch } from "./live.js";
import { button } from "./acts.js";
nav("autoholds", "Autoholds");
const body = el("div");
const end = (h) => button({ permission: "autohold", label: "Release", name: `Release ${h.id}`, title: `Delete autohold ${h.id}?`, what: "Work directories are removed and machines are released. Nothing is tested again.", send: ({ reason }) => sent("DELETE", `${api}/autohold/${h.id}${reason ? `?reason=${encodeURIComponent(reason)}` : ""}`), done: () => again() });
const where = (h) => (h.directory ? [el("br"), el("code", {}, `${h.executor}:${h.directory}`)] : []);
const held = (h) => el("li", {}, link("build", h.build, h.build.slice(0, 8)), h.over ? " released " : " will be released ", since(h.until * 1000), h.nodes.length ? ` with ${h.nodes.join(", ")}` : "", h.over ? [] : where(h));
main.append(el("h1", {}, "Autoholds"), el("p", { class: "small" }, "Failed builds whose work directories and machines are held. Request a hold with ", el("code", {}, "headgate autohold PROJECT JOB"), "; release the builds with ", el("code", {}, "headgate autohold delete ID"), "."), body);
const again = watch(`${api}/autohold`, body, (found) => table(["Id", "Project", "Job", "Refs", "Held", "Reason", "Who", "Builds"], found.map((h) => [el("code", {}, h.id), link("project", h.project, short(h.project)), link("job", h.job, h.job), h.ref_filter === ".*" ? "all" : el("code", {}, h.ref_filter),
  `${h.current_count} of ${h.max_count}`, h.reason ?? "", h.who, [h.nodes.length ? el("ul", { class: "plain" }, h.nodes.map(held)) : "none yet ", end(h)]]), "There are no autoholds."), 10_000);
