import { api, el, main, nav } from "./page.js";
import { watch } from "./live.js";
nav("errors", "Configuration errors");
const body = el("div");
main.append(el("h1", {}, "Configuration errors"), body);
watch(`${api}/config-errors`, body, (found) => (found.length ? found.map((e) => el("section", { class: "card" }, el("h2", {}, e.short_error),
  el("p", { class: "small" }, `${e.severity} · ${e.name} · ${e.source_context.project} ${e.source_context.branch} ${e.source_context.path}:${e.source_context.line}`), el("pre", { tabindex: 0 }, e.error))) : [el("p", { class: "empty" }, "The landed configuration has no errors.")]), 10_000);
