// A list from the history, filtered and paged by its address, and updated when something ends.
import { api, el, main, nav, table } from "./page.js";
import { watch } from "./live.js";
const PAGE_ROWS = 50, AGAIN_MS = 10_000;

export function listing(kind, title, names, heads, row) {
  nav(kind, title);
  const query = new URLSearchParams(location.search);
  const inputs = names.map((name) => el("input", { type: "search", name, placeholder: name.replace("_name", "").replace("_", " "), "aria-label": name.replace("_", " "), value: query.get(name) ?? "", onchange: () => show(0) }));
  const body = el("div");
  main.append(el("h1", {}, title), el("form", { class: "tools filters", role: "search", onsubmit: (event) => { event.preventDefault(); show(0); } }, ...inputs, el("button", {}, "Filter")), body);

  const given = Number(query.get("skip"));
  let skip = Number.isInteger(given) && given > 0 ? given : 0;
  const wanted = () => new URLSearchParams(inputs.map((input) => [input.name, input.value.trim()]).filter(([, value]) => value));
  const turn = (label, to, usable) => el("button", { type: "button", disabled: !usable, onclick: () => { show(to); scrollTo(0, 0); } }, label);
  const draw = (found) => [table(heads, found.slice(0, PAGE_ROWS).map(row), wanted().size ? `No ${kind} match these filters.` : `No finished ${kind} yet.`),
    el("nav", { class: "tools", "aria-label": "More rows" }, skip || found.length > PAGE_ROWS ? [turn("← Newer", Math.max(0, skip - PAGE_ROWS), skip > 0), turn("Older →", skip + PAGE_ROWS, found.length > PAGE_ROWS), el("span", { class: "small" }, `from ${skip + 1}`)] : [])];
  const again = watch(() => `${api}/${kind}?${wanted()}&complete=true&limit=${PAGE_ROWS + 1}&skip=${skip}`, body, draw, AGAIN_MS);

  function show(to) {
    skip = to;
    main.querySelector(":scope > p.bad")?.remove();
    const address = wanted();
    if (skip) address.set("skip", String(skip));
    history.replaceState(null, "", address.size ? `?${address}` : location.pathname);
    again();
  }
}
