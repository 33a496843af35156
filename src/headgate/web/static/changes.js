// What is proposed, and what each change still lacks.
import { about, api, el, fetched, main, nav, ofIt, table, trouble } from "./page.js";

const MOST = 200;
const stands = (one) => (one.places.length ? one.places.map((place) => `${place.pipeline}, place ${place.position}`).join("; ") : one.lacks.length ? one.lacks.find((pipe) => !pipe.lacks.length) ? `ready for ${one.lacks.find((pipe) => !pipe.lacks.length).pipeline}` : one.lacks[0].lacks.map((line) => ofIt(one.ref, line)).join("; ") : "");

nav("changes", "Changes");
try {
  const project = new URLSearchParams(location.search).get("project") ?? "";
  const field = el("input", { type: "search", name: "project", placeholder: "project", "aria-label": "Project", value: project });
  main.append(el("h1", {}, project ? `Changes of ${project}` : "Changes"), el("form", { class: "tools filters", role: "search" }, field, el("button", {}, "Filter")));
  const found = await fetched(`${api}/changes?${new URLSearchParams({ ...(project ? { project } : {}), limit: MOST })}`);
  main.append(table(["Change", "Author", "Approved by", "Stands"], found.map((one) => [about(one.ref), one.ref.owner.replace(/\s*<.*/, ""), one.approvals.filter((word) => word.current).map((word) => word.who).join(", ") || (one.approved ? "yes" : ""), stands(one)]), "Nothing is proposed."));
  if (found.length === MOST) main.append(el("p", { class: "note" }, `Only the first ${MOST} are shown; name a project.`));
} catch (error) { trouble(error); }
