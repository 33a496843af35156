import { api, el, fetched, link, look, nav, short, uuid } from "./common.js";
nav("");
const main = document.getElementById("main");
try {
  const set = await fetched(`${api}/buildset/${encodeURIComponent(uuid)}`), ref = set.refs[0];
  main.append(el("h1", {}, `${short(ref.project)} ${ref.change || ref.ref}: `, el("span", { class: `result ${look(set.result)}` }, set.result)),
    el("dl", {}, el("dt", {}, "Pipeline"), el("dd", {}, set.pipeline), el("dt", {}, "Branch"), el("dd", {}, ref.branch), el("dt", {}, "Commit"), el("dd", {}, ref.patchset), el("dt", {}, "Ended"), el("dd", {}, set.last_build_end_time ?? "")),
    el("pre", {}, set.message), el("h2", {}, "Builds"),
    ...set.builds.map((b) => el("p", {}, link("build", b.uuid, b.job_name), " ", el("span", { class: `result ${look(b.result)}` }, b.result))));
} catch (error) { main.append(el("p", {}, error.message)); }
