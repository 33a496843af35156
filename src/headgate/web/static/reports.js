import { api, el, fetched, main, nav, table, trouble } from "./page.js";
nav("reports", "Reports");
const moment = (ms) => (ms === null ? "" : el("time", { datetime: new Date(ms).toISOString() }, new Date(ms).toLocaleString()));
try {
  const found = await fetched(`${api}/reports`);
  main.append(el("h1", {}, "Reports"), el("p", { class: "small" }, "What pipelines report by mail, webhook, chat and queue. Notes of plain git go with its own pushes."),
    table(["Connection", "Waiting", "Since", "Why"], found.outboxes.map((o) => [o.connection, o.waiting ? String(o.waiting) : "nothing", moment(o.oldest),
      o.trouble ? el("span", { class: "result bad" }, o.trouble) : ""]), "Nothing was reported so far."),
    el("h2", {}, "Taken by nobody"), el("p", { class: "small" }, "They are kept. An operator tries one again with ", el("code", {}, "headgate reports retry ID"), ", or drops it."),
    table(["Id", "Report", "Why", "When"], found.undelivered.map((a) => [el("code", {}, a.id), a.what, a.error, moment(a.since)]), "Every report was taken."));
} catch (error) { trouble(error); }
