// Images: the builds of each, newest first, their uploads and the states of these.
import { api, el, link, passed, sent, short, tenant } from "./page.js";
import { button } from "./acts.js";
import { rows } from "./rows.js";
const LOOK = { ready: "good", pending: "busy", uploading: "busy", failed: "bad", deleting: "mute" };
const state = (one) => el("span", { class: `result ${LOOK[one.state] ?? "mute"}` }, one.state);
const small = (...words) => el("span", { class: "small under" }, ...words);
const act = (permission, label, name, title, what, method, place) => button({ permission, label, name, title, what, send: () => sent(method, `${api}/${place}`, method === "POST" ? {} : undefined), done: () => again() });
const build = (i) => act("build-image", "Build", `Build ${i.name}`, `Build the image ${i.name}?`, "The jobs that build it run. The current builds stay until a newer one is validated.", "POST", `image/${encodeURIComponent(i.name)}/build`);
const drop = (i, a) => act("delete-image-build-artifact", "Delete", `Delete build ${a.uuid} of ${i.name}`, `Delete this build of ${i.name}?`, "It and its uploads are deleted once no machine uses it; new machines use the previous build.", "DELETE", `image-build-artifact/${encodeURIComponent(a.uuid)}`);
const ask = (permission, label, what, u, verb) => act(permission, label, `${label} upload ${u.uuid}`, `${label} this upload?`, what, "POST", `image-upload/${encodeURIComponent(u.uuid)}/${verb}`);
const acts = (u) => [u.state === "failed" ? ask("upload-image", "Retry", "It is uploaded again.", u, "upload") : "", u.state === "ready" ? ask("validate-image-upload", "Validate", "The jobs that validate it run again.", u, "validate") : "",
  act("delete-image-upload", "Delete", `Delete upload ${u.uuid}`, "Delete this upload?", "It is deleted once no machine uses it, and is not uploaded there again.", "DELETE", `image-upload/${encodeURIComponent(u.uuid)}`)];
const from = (providers, u) => providers.filter((p) => u.providers.includes(p.canonical_name)).map((p) => p.name).join(", ");
const upload = (mine, providers) => (u) => el("li", {}, el("strong", {}, u.endpoint_name), " ", state(u), " ", passed(u.state_time), " ", u.state === "ready" ? (u.validated ? "validated" : "not validated") : "",
  u.providers.length ? small("used by ", from(providers, u)) : "", u.external_id ? small(el("code", {}, u.external_id)) : "", u.machines ? small(`${u.machines.toLocaleString()} ${u.machines === 1 ? "machine uses" : "machines use"} it`) : "", u.why ? small(u.why) : "", mine ? el("span", { class: "acts" }, acts(u)) : "");
const made = (a) => [a.format, a.sha256 ? small("sha256 ", el("code", { title: a.sha256 }, `${a.sha256.slice(0, 16)}…`)) : "", a.md5sum ? small("md5 ", el("code", { title: a.md5sum }, `${a.md5sum.slice(0, 16)}…`)) : ""];
const where = (a, providers) => (a.uploads.length ? el("ul", { class: "plain" }, a.uploads.map(upload(a.build_tenant, providers))) : "It is not uploaded yet.");
const head = (i) => [i.name, small(i.type === "zuul" ? "built by jobs" : "provided by the cloud"), small(`${short(i.project_canonical_name)} ${i.branch}`)];
const whose = (a) => (a.build_tenant ? (a.build_uuid ? link("build", a.build_uuid, a.build_uuid.slice(0, 8)) : "") : "another tenant");
const text = (i, a) => [i.name, i.type, a?.uuid, a?.format, a?.sha256, a?.state, ...(a?.uploads ?? []).flatMap((u) => [u.uuid, u.endpoint_name, u.state, u.why])].filter(Boolean).join(" ");
const first = (i, a, providers) => [text(i, a), () => [[head(i), i.type === "zuul" ? build(i) : ""],
  ...(a ? [whose(a), passed(a.timestamp), made(a), [state(a), a.validated ? small("validated") : ""], where(a, providers), a.build_tenant ? drop(i, a) : ""] : ["", "", "", i.type === "zuul" ? "not built yet" : "", "", ""])]];
const again = rows({ page: "images", title: "Images", urls: [`${api}/images`, `${api}/providers`], every: 10_000, empty: "The configuration of this tenant defines no images.",
  intro: ["The images of machines: the builds of each image, newest first, and their uploads. For the labels that use them, see ", el("a", { href: `/t/${encodeURIComponent(tenant)}/providers` }, "providers"), "."],
  heads: ["Image", "Build", "Built", "Format", "State", "Uploads", ""],
  rows: (images, providers) => images.flatMap((i) => ((i.build_artifacts ?? []).length ? i.build_artifacts : [null]).map((a) => first(i, a, providers))) });
