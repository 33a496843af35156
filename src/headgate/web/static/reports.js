import { api, el, main, nav, since, table } from "./page.js";
import { watch } from "./live.js";
nav("reports", "Reports");
const body = el("div");
main.append(el("h1", {}, "Reports"), el("p", { class: "small" }, "What pipelines report by mail, webhook, chat and queue. Notes of plain git go with its own pushes."), body);
watch(`${api}/reports`, body, (found) => [table(["Connection", "Waiting", "Since", "Why"], found.outboxes.map((o) => [o.connection, o.waiting ? String(o.waiting) : "nothing", since(o.oldest),
  o.problem ? el("span", { class: "result bad" }, o.problem) : ""]), "Nothing was reported so far."),
  el("h2", {}, "Taken by nobody"), el("p", { class: "small" }, "They are kept. An operator tries one again with ", el("code", {}, "headgate reports retry ID"), ", or drops it."),
  table(["Id", "Report", "Why", "When"], found.undelivered.map((a) => [el("code", {}, a.id), a.what, a.error, since(a.since)]), "Every report was taken.")], 10_000);
