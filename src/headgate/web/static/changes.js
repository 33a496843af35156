// The open changes, and the requirements that each does not meet yet.
import { about, api, el, main, nav, ofIt, table } from "./page.js";
import { watch } from "./live.js";

const MOST = 200;
const stands = (one) => (one.places.length ? one.places.map((place) => `${place.pipeline}, place ${place.position}`).join("; ") : one.lacks.length ? one.lacks.find((pipe) => !pipe.lacks.length) ? `ready for ${one.lacks.find((pipe) => !pipe.lacks.length).pipeline}` : one.lacks[0].lacks.map((line) => ofIt(one.ref, line)).join("; ") : "");

nav("changes", "Changes");
const project = new URLSearchParams(location.search).get("project") ?? "", body = el("div");
const field = el("input", { type: "search", name: "project", placeholder: "project", "aria-label": "Project", value: project });
main.append(el("h1", {}, project ? `Changes of ${project}` : "Changes"), el("form", { class: "tools filters", role: "search" }, field, el("button", {}, "Filter")), body);
watch(`${api}/changes?${new URLSearchParams({ ...(project ? { project } : {}), limit: String(MOST) })}`, body, (found) => [
  table(["Change", "Author", "Approved by", "Status"], found.map((one) => [about(one.ref), one.ref.owner.replace(/\s*<.*/, ""), one.approvals.filter((word) => word.current).map((word) => word.who).join(", ") || (one.approved ? "yes" : ""), stands(one)]), "There are no open changes."),
  found.length === MOST ? el("p", { class: "note" }, `Only the first ${MOST} are shown; filter by a project.`) : ""], 10_000);
