import { address, api, copy, el, facts, link, linked, main, nav, outside, people, short, subject as uuid, table, tenant, took, when, word } from "./page.js";
import { watch } from "./live.js";
import { button, named, post, project } from "./acts.js";
import { timeline } from "./timeline.js";
nav("", "Buildset");

// The table of builds; empty columns are left out, as there is little room on a phone.
function builds(all) {
  const left = (b) => b.artifacts.filter((a) => a.metadata?.type !== "zuul_manifest");
  const columns = [["Job", (b) => link("build", b.uuid, b.job_name), true], ["Result", (b) => el("span", {}, word(b.result), el("span", { class: "small" }, b.voting ? "" : " non-voting", b.final || b.result === null ? "" : ` attempt ${b.attempt}, superseded`)), true],
    ["Took", (b) => (b.duration === null ? "" : took(b.duration * 1000)), true], ["Artifacts", (b) => el("span", {}, left(b).flatMap((a, n) => [n ? ", " : "", outside(a.url, a.name)])), all.some((b) => left(b).length)], ["Error", (b) => b.error_detail ?? "", all.some((b) => b.error_detail)]].filter(([, , shown]) => shown);
  return table(columns.map(([name]) => name), all.map((b) => columns.map(([, cell]) => cell(b))), "No jobs ran.");
}

const AGAIN_MS = 5000, body = el("div");
main.append(body);
watch(`${api}/buildset/${encodeURIComponent(uuid)}`, body, (set) => {
  const ref = set.refs[0];
  document.title = `${ref.change || ref.ref} ${set.result ?? "running"} · Headgate`;
  return [el("h1", {}, `${short(ref.project)} ${ref.change || ref.ref} `, word(set.result)),
    facts([["Project", link("project", ref.project, short(ref.project))], ["Change", ref.ref_url ? outside(ref.ref_url, ref.change || ref.ref) : ""],
      ["When will it land?", ref.change ? el("a", { href: address({ ...ref, project_canonical: ref.project }) }, "see the change") : ""],
      ["Tested together with", set.refs.length > 1 ? el("span", {}, set.refs.slice(1).flatMap((r, n) => [n ? ", " : "", link("project", r.project, short(r.project)), ` ${r.change}`])) : ""], ["Pipeline", link("status", set.pipeline, set.pipeline)], ["Branch", ref.branch], ...people(ref),
      ["Commit", ref.patchset || ref.newrev ? [el("code", {}, ref.patchset || ref.newrev), " ", copy(ref.patchset || ref.newrev, "the id of the commit")] : ""], ["Superseded", set.final ? "" : "yes: the change was tested again on another base"], ["Enqueued", when(set.event_timestamp)], ["Ended", when(set.last_build_end_time)]]),
    el("div", { class: "acts" }, button({ permission: "enqueue", label: "Enqueue again", title: `Enqueue ${ref.change || ref.ref} in ${set.pipeline} again?`, verb: "Enqueue", what: "All its jobs run again, at the end of the queue, with the newest patchset. Nothing else is tested again.",
      send: ({ reason }) => post(project({ project: short(ref.project) }, "enqueue"), { pipeline: set.pipeline, ...named(ref), ...(ref.change ? {} : { oldrev: ref.oldrev, newrev: ref.newrev }), reason }), done: () => location.assign(`/t/${encodeURIComponent(tenant)}/status`) })),
    el("h2", {}, "Builds"), builds(set.builds ?? []),
    ...timeline(set),
    ...(set.message ? [el("h2", {}, "Report"), el("pre", { class: "report" }, linked(set.message))] : [])];
}, AGAIN_MS);
