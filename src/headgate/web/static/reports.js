import { api, el, main, nav, since, table } from "./page.js";
import { watch } from "./live.js";
nav("reports", "Reports");
const body = el("div");
main.append(el("h1", {}, "Reports"), el("p", { class: "small" }, "Reports of pipelines by mail, webhook, chat and queue. Reports to plain git are not listed: they are pushed as git notes."), body);
watch(`${api}/reports`, body, (found) => [table(["Connection", "Waiting", "Since", "Reason"], found.outboxes.map((o) => [o.connection, o.waiting ? String(o.waiting) : "nothing", since(o.oldest),
  o.problem ? el("span", { class: "result bad" }, o.problem) : ""]), "There are no reports yet."),
  el("h2", {}, "Rejected reports"), el("p", { class: "small" }, "The receiver rejected these reports. An operator can retry one with ", el("code", {}, "headgate reports retry ID"), ", or drop it."),
  table(["Id", "Report", "Error", "When"], found.undelivered.map((a) => [el("code", {}, a.id), a.what, a.error, since(a.since)]), "No report was rejected.")], 10_000);
