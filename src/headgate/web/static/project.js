import { api, el, facts, link, main, nav, subject, table, tenant } from "./page.js";
import { watch } from "./live.js";
nav("projects", subject);
// The badge and the feed of a project.
function share(p) {
  const query = `project=${encodeURIComponent(p.name)}`, base = `${location.origin}/t/${encodeURIComponent(tenant)}`;
  const gates = [...new Set(p.configs.flatMap((c) => c.pipelines.map((pipe) => pipe.name)))];
  const choose = el("select", { "aria-label": "Pipeline of the badge", onchange: () => draw() }, gates.map((name) => el("option", {}, name)));
  const picture = el("img", { alt: "", onerror: () => { picture.hidden = true; }, onload: () => { picture.hidden = false; } }), code = el("code");
  const copy = el("button", { type: "button", onclick: async () => { await navigator.clipboard.writeText(code.textContent); copy.textContent = "Copied"; setTimeout(() => { copy.textContent = "Copy"; }, 2000); } }, "Copy");
  function draw() {
    const of = `${location.origin}${api}/badge?${query}&pipeline=${encodeURIComponent(choose.value)}`;
    picture.src = of;
    code.textContent = `[![${choose.value}](${of})](${base}/buildsets?${query}&pipeline=${encodeURIComponent(choose.value)})`;
  }
  return el("details", { ontoggle: () => gates.length && draw() }, el("summary", {}, "Badge and feed"), gates.length ? el("p", { class: "tools" }, choose, picture, code, copy) : "", el("p", {}, el("a", { href: `${base}/feed.atom?${query}` }, "Atom feed of finished buildsets")));
}

const AGAIN_MS = 30_000, body = el("div");
main.append(body);
watch(`${api}/project/${subject.split("/").map(encodeURIComponent).join("/")}`, body, (p) => {
  const where = (c) => `${c.project} ${c.branch} ${c.path}:${c.line}`, list = (page) => el("a", { href: `/t/${encodeURIComponent(tenant)}/${page}?project=${encodeURIComponent(p.name)}` }, page);
  return [el("h1", {}, p.name), facts([["Name", p.canonical_name], ["Connection", p.connection_name], ["Branches", p.branches.join(", ")], ["History", el("span", {}, list("builds"), ", ", list("buildsets"), ", ", list("changes"), ", ", list("statistics"))]]),
    share(p),
    el("h2", {}, "Pipelines"), table(["Pipeline", "Jobs", "Graph", "Queue", "Defined in"], p.configs.flatMap((c) => c.pipelines.map((pipe) => [link("status", pipe.name, pipe.name),
      el("span", {}, pipe.jobs.flatMap(([job], n) => [n ? ", " : "", link("job", job.name, job.name)])), pipe.jobs.length && p.branches.length ? el("a", { href: `/t/${encodeURIComponent(tenant)}/freeze?${new URLSearchParams({ project: p.name, branch: p.branches[0], pipeline: pipe.name })}`, "aria-label": `Job graph of ${pipe.name}` }, "graph") : "", c.queue_name ?? "", where(c.source_context)])), "No pipeline has jobs for this project.")];
}, AGAIN_MS);
