import { api, el, fetched, main, nav, trouble } from "./page.js";
nav("errors", "Configuration errors");
try {
  const found = await fetched(`${api}/config-errors`);
  main.append(el("h1", {}, "Configuration errors"), ...(found.length ? found.map((e) => el("section", { class: "card" }, el("h2", {}, e.short_error),
    el("p", { class: "small" }, `${e.severity} · ${e.name} · ${e.source_context.project} ${e.source_context.branch} ${e.source_context.path}:${e.source_context.line}`), el("pre", {}, e.error))) : [el("p", { class: "empty" }, "The configuration that landed has no errors.")]));
} catch (error) { trouble(error); }
