// The open changes, and the requirements that each does not meet yet.
import { about, api, el, link, main, nav, ofIt, table, word } from "./page.js";
import { watch } from "./live.js";

const MOST = 200;
const id = (pipeline, project, patchset) => `${pipeline} ${project} ${patchset}`;

// Where a change is, what it lacks, or what came of this patchset in the pipeline that lands it.
function status(one, results) {
  if (one.places.length) return one.places.map((place) => `${place.pipeline}, place ${place.position}`).join("; ");
  const ready = one.lacks.find((pipe) => !pipe.lacks.length);
  if (!ready) return one.lacks.length ? one.lacks[0].lacks.map((line) => ofIt(one.ref, line)).join("; ") : "";
  const set = results.get(id(ready.pipeline, one.ref.project_canonical, one.ref.patchset));
  return set ? el("span", {}, link("buildset", set.uuid, word(set.result)), ` in ${ready.pipeline}`) : `ready for ${ready.pipeline}`;
}

nav("changes", "Changes");
const project = new URLSearchParams(location.search).get("project") ?? "", body = el("div");
const field = el("input", { type: "search", name: "project", placeholder: "project", "aria-label": "Project", value: project });
main.append(el("h1", {}, project ? `Changes of ${project}` : "Changes"), el("form", { class: "tools filters", role: "search" }, field, el("button", {}, "Filter")), body);
const only = new URLSearchParams({ ...(project ? { project } : {}), limit: String(MOST) });
watch([`${api}/changes?${only}`, `${api}/buildsets?${only}`], body, (found, sets) => {
  // The newest first: the last run of a patchset counts.
  const results = new Map(sets.filter((set) => set.result).reverse().flatMap((set) => set.refs.map((ref) => [id(set.pipeline, ref.project, ref.patchset), set])));
  return [
    table(["Change", "Author", "Approved by", "Status"], found.map((one) => [about(one.ref), one.ref.owner.replace(/\s*<.*/, ""), one.approvals.filter((word) => word.current).map((word) => word.who).join(", ") || (one.approved ? "yes" : ""), status(one, results)]), "There are no open changes."),
    found.length === MOST ? el("p", { class: "note" }, `Only the first ${MOST} are shown; filter by a project.`) : ""];
}, 10_000);
