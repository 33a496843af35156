import { api, el, fetched, link, main, nav, sent, short, table, trouble } from "./page.js";
import { button } from "./acts.js";
nav("autoholds", "Autoholds");
const end = (h) => button({ permission: "autohold", label: "Give back", name: `Give back ${h.id}`, title: `Give back what autohold ${h.id} keeps?`, what: "Work directories are removed and machines go back to others. Nothing is tested anew.", send: ({ reason }) => sent("DELETE", `${api}/autohold/${h.id}${reason ? `?reason=${encodeURIComponent(reason)}` : ""}`), done: () => location.reload() });
const moment = (s) => el("time", { datetime: new Date(s * 1000).toISOString() }, new Date(s * 1000).toLocaleString());
const where = (h) => (h.directory ? [el("br"), el("code", {}, `${h.executor}:${h.directory}`)] : []);
const held = (h) => el("li", {}, link("build", h.build, h.build.slice(0, 8)), h.over ? " given back " : " until ", moment(h.until), h.nodes.length ? ` with ${h.nodes.join(", ")}` : "", h.over ? [] : where(h));
try {
  const found = await fetched(`${api}/autohold`);
  main.append(el("h1", {}, "Autoholds"), el("p", { class: "small" }, "Builds whose work directory and machines are kept when they fail. Ask for it with ", el("code", {}, "headgate autohold PROJECT JOB"), "; give back with ", el("code", {}, "headgate autohold delete ID"), "."),
    table(["Id", "Project", "Job", "Refs", "Held", "Why", "Who", "Builds"], found.map((h) => [el("code", {}, h.id), link("project", h.project, short(h.project)), link("job", h.job, h.job), h.ref_filter === ".*" ? "all" : el("code", {}, h.ref_filter),
      `${h.current_count} of ${h.max_count}`, h.reason ?? "", h.who, [h.nodes.length ? el("ul", { class: "plain" }, h.nodes.map(held)) : "none yet ", end(h)]]), "Nothing is to be held."));
} catch (error) { trouble(error); }
