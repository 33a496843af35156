// A list that can be filtered and paged; what is asked for is in the address.
import { api, el, fetched, main, nav, table } from "./page.js";
const PAGE_ROWS = 50;

export function listing(kind, title, names, heads, row) {
  nav(kind, title);
  const query = new URLSearchParams(location.search);
  const inputs = names.map((name) => el("input", { type: "search", name, placeholder: name.replace("_name", "").replace("_", " "), "aria-label": name.replace("_", " "), value: query.get(name) ?? "", onchange: () => show(0) }));
  const body = el("div"), pages = el("nav", { class: "tools", "aria-label": "More rows" });
  main.append(el("h1", {}, title), el("form", { class: "tools filters", role: "search", onsubmit: (event) => { event.preventDefault(); show(0); } }, ...inputs, el("button", {}, "Filter")), body, pages);

  async function show(skip) {
    const wanted = new URLSearchParams(inputs.map((input) => [input.name, input.value.trim()]).filter(([, value]) => value));
    const address = new URLSearchParams(wanted);
    if (skip) address.set("skip", skip);
    history.replaceState(null, "", address.size ? `?${address}` : location.pathname);
    try {
      const rows = await fetched(`${api}/${kind}?${wanted}&complete=true&limit=${PAGE_ROWS + 1}&skip=${skip}`);
      body.replaceChildren(table(heads, rows.slice(0, PAGE_ROWS).map(row), wanted.size ? `No ${kind} fit these filters.` : `No ${kind} yet: what ends is shown here.`));
      const turn = (label, to, usable) => el("button", { type: "button", disabled: !usable, onclick: () => { show(to); scrollTo(0, 0); } }, label);
      pages.replaceChildren(...(skip || rows.length > PAGE_ROWS ? [turn("← Newer", Math.max(0, skip - PAGE_ROWS), skip > 0), turn("Older →", skip + PAGE_ROWS, rows.length > PAGE_ROWS), el("span", { class: "small" }, `from ${skip + 1}`)] : []));
    } catch (error) { body.replaceChildren(el("p", { class: "note bad", role: "alert" }, error.message)); }
  }
  const skip = Number(query.get("skip"));
  return show(Number.isInteger(skip) && skip > 0 ? skip : 0);
}
