import { api, el, link, passed } from "./page.js";
import { rows } from "./rows.js";
rows({ page: "requests", title: "Requests for machines", urls: `${api}/nodeset-requests`, empty: "No build of this tenant requests machines at the moment.",
  intro: "Builds that wait for machines or have them, the oldest request first. The place counts the builds of all tenants.",
  heads: ["Job", "State", "Labels", "Requested", "Place", "Reason"],
  rows: (found) => found.map((r) => [`${r.job_name} ${r.pipeline_name} ${r.state} ${r.labels.join(" ")} ${r.why ?? ""}`, () => [
    [r.buildset_uuid ? link("buildset", r.buildset_uuid, r.job_name) : r.job_name, el("span", { class: "small under" }, r.pipeline_name)], el("span", { class: `result ${r.state === "fulfilled" ? "good" : "busy"}` }, r.state === "fulfilled" ? "fulfilled" : "waiting"),
    r.labels.join(", "), passed(r.request_time), r.position === null ? "" : String(r.position), [r.why ?? "", r.why_since ? [" ", el("span", { class: "small" }, "since "), passed(r.why_since)] : "", r.tried.length ? el("ul", { class: "plain small" }, r.tried.map((one) => el("li", {}, one))) : ""]]]) });
