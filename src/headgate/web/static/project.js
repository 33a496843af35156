import { api, el, facts, fetched, link, main, nav, subject, table, tenant, trouble } from "./page.js";
nav("projects", subject);
try {
  const p = await fetched(`${api}/project/${subject.split("/").map(encodeURIComponent).join("/")}`);
  const where = (c) => `${c.project} ${c.branch} ${c.path}:${c.line}`, list = (page) => el("a", { href: `/t/${encodeURIComponent(tenant)}/${page}?project=${encodeURIComponent(p.name)}` }, page);
  main.append(el("h1", {}, p.name), facts([["Name", p.canonical_name], ["Connection", p.connection_name], ["Branches", p.branches.join(", ")], ["History", el("span", {}, list("builds"), ", ", list("buildsets"), ", ", list("changes"))]]),
    el("h2", {}, "Pipelines"), table(["Pipeline", "Jobs", "Queue", "Written in"], p.configs.flatMap((c) => c.pipelines.map((pipe) => [link("status", pipe.name, pipe.name),
      el("span", {}, pipe.jobs.flatMap(([job], n) => [n ? ", " : "", link("job", job.name, job.name)])), c.queue_name ?? "", where(c.source_context)])), "No pipeline has jobs for this project."));
} catch (error) { trouble(error); }
