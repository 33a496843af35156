import { api, el, facts, fetched, link, main, nav, outside, people, short, subject as uuid, table, tenant, took, trouble, when, word } from "./page.js";
import { button, named, post, project } from "./acts.js";
nav("", "Buildset");
try {
  const set = await fetched(`${api}/buildset/${encodeURIComponent(uuid)}`), ref = set.refs[0];
  document.title = `${ref.change || ref.ref} ${set.result} · Headgate`;
  main.append(el("h1", {}, `${short(ref.project)} ${ref.change || ref.ref} `, word(set.result)),
    facts([["Project", link("project", ref.project, short(ref.project))], ["Change", ref.ref_url ? outside(ref.ref_url, ref.change || ref.ref) : ""],
      ["Tested as one with", set.refs.length > 1 ? el("span", {}, set.refs.slice(1).flatMap((r, n) => [n ? ", " : "", link("project", r.project, short(r.project)), ` ${r.change}`])) : ""], ["Pipeline", link("status", set.pipeline, set.pipeline)], ["Branch", ref.branch], ...people(ref),
      ["Commit", el("code", {}, ref.patchset || ref.newrev || "")], ["Superseded", set.final ? "" : "yes: the change was tested anew, on something else"], ["Enqueued", when(set.event_timestamp)], ["Ended", when(set.last_build_end_time)]]),
    el("div", { class: "acts" }, button({ permission: "enqueue", label: "Enqueue again", title: `Enqueue ${ref.change || ref.ref} in ${set.pipeline} again?`, verb: "Enqueue", what: "All its jobs are run anew, at the end of its queue; the newest patchset counts. Nothing else is tested anew.",
      send: ({ reason }) => post(project({ project: short(ref.project) }, "enqueue"), { pipeline: set.pipeline, ...named(ref), ...(ref.change ? {} : { oldrev: ref.oldrev, newrev: ref.newrev }), reason }), done: () => location.assign(`/t/${encodeURIComponent(tenant)}/status`) })),
    el("h2", {}, "Builds"), table(["Job", "Result", "Took", "Artifacts", "Error"], (set.builds ?? []).map((b) => [link("build", b.uuid, b.job_name), el("span", {}, word(b.result), el("span", { class: "small" }, b.voting ? "" : " non-voting", b.final ? "" : ` attempt ${b.attempt}, superseded`)),
      b.duration === null ? "" : took(b.duration * 1000), el("span", {}, b.artifacts.filter((a) => a.metadata?.type !== "zuul_manifest").flatMap((a, n) => [n ? ", " : "", outside(a.url, a.name)])), b.error_detail ?? ""]), "No job was run."),
    el("h2", {}, "Report"), el("pre", {}, set.message ?? ""));
} catch (error) { trouble(error); }
