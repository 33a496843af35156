import { address, api, el, facts, fetched, instant, link, look, main, nav, outside, people, short, subject as uuid, table, tenant, took, trouble, when, word } from "./page.js";
import { button, named, post, project } from "./acts.js";
nav("", "Buildset");

// When each of its builds began and ended, side by side, from when the change was enqueued.
function timeline(set) {
  const builds = (set.builds ?? []).filter((b) => b.start_time).map((b) => ({ ...b, from: +instant(b.start_time), to: b.end_time ? +instant(b.end_time) : Date.now() })).sort((a, b) => a.from - b.from);
  if (builds.length < 2) return [];
  const begin = Math.min(set.event_timestamp ? +instant(set.event_timestamp) : Infinity, builds[0].from), whole = Math.max(1000, Math.max(...builds.map((b) => b.to)) - begin);
  const row = (b) => {
    const bar = el("i", { class: look(b.result) });
    bar.style.marginLeft = `${Math.min(99.5, 100 * (b.from - begin) / whole)}%`;
    bar.style.width = `${Math.max(.5, 100 * (b.to - b.from) / whole)}%`;
    return el("li", {}, link("build", b.uuid, b.job_name + (b.attempt > 1 ? `, attempt ${b.attempt}` : "")), el("span", { class: "lane" }, bar), el("span", { class: "small" }, `after ${took(b.from - begin)}, ${took(b.to - b.from)}`));
  };
  return [el("h2", {}, "When it ran"), el("ol", { class: "plain timeline" }, builds.map(row))];
}
try {
  const set = await fetched(`${api}/buildset/${encodeURIComponent(uuid)}`), ref = set.refs[0];
  document.title = `${ref.change || ref.ref} ${set.result} · Headgate`;
  main.append(el("h1", {}, `${short(ref.project)} ${ref.change || ref.ref} `, word(set.result)),
    facts([["Project", link("project", ref.project, short(ref.project))], ["Change", ref.ref_url ? outside(ref.ref_url, ref.change || ref.ref) : ""],
      ["When will it land?", ref.change ? el("a", { href: address({ ...ref, project_canonical: ref.project }) }, "all that is known of the change") : ""],
      ["Tested as one with", set.refs.length > 1 ? el("span", {}, set.refs.slice(1).flatMap((r, n) => [n ? ", " : "", link("project", r.project, short(r.project)), ` ${r.change}`])) : ""], ["Pipeline", link("status", set.pipeline, set.pipeline)], ["Branch", ref.branch], ...people(ref),
      ["Commit", el("code", {}, ref.patchset || ref.newrev || "")], ["Superseded", set.final ? "" : "yes: the change was tested anew, on something else"], ["Enqueued", when(set.event_timestamp)], ["Ended", when(set.last_build_end_time)]]),
    el("div", { class: "acts" }, button({ permission: "enqueue", label: "Enqueue again", title: `Enqueue ${ref.change || ref.ref} in ${set.pipeline} again?`, verb: "Enqueue", what: "All its jobs are run anew, at the end of its queue; the newest patchset counts. Nothing else is tested anew.",
      send: ({ reason }) => post(project({ project: short(ref.project) }, "enqueue"), { pipeline: set.pipeline, ...named(ref), ...(ref.change ? {} : { oldrev: ref.oldrev, newrev: ref.newrev }), reason }), done: () => location.assign(`/t/${encodeURIComponent(tenant)}/status`) })),
    el("h2", {}, "Builds"), table(["Job", "Result", "Took", "Artifacts", "Error"], (set.builds ?? []).map((b) => [link("build", b.uuid, b.job_name), el("span", {}, word(b.result), el("span", { class: "small" }, b.voting ? "" : " non-voting", b.final ? "" : ` attempt ${b.attempt}, superseded`)),
      b.duration === null ? "" : took(b.duration * 1000), el("span", {}, b.artifacts.filter((a) => a.metadata?.type !== "zuul_manifest").flatMap((a, n) => [n ? ", " : "", outside(a.url, a.name)])), b.error_detail ?? ""]), "No job was run."),
    ...timeline(set),
    el("h2", {}, "Report"), el("pre", {}, set.message ?? ""));
} catch (error) { trouble(error); }
