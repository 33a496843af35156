// A list that is loaded completely: filtered by words and shown page by page; the address contains filter and page.
import { el, main, nav, table } from "./page.js";
import { renew, watch } from "./live.js";
const PAGE_ROWS = 100;

// `about`: {page, title, intro, urls, heads, rows: (answers) => [[text, () => cells]], empty, every, above: (answers) => nodes}
export function rows(about) {
  nav(about.page, about.title);
  const query = new URLSearchParams(location.search), given = Number(query.get("skip"));
  let skip = Number.isInteger(given) && given > 0 ? given : 0, found = [], answers = null;
  const filter = el("input", { type: "search", placeholder: "Filter  ( / )", "aria-label": `Filter ${about.title.toLowerCase()}`, value: query.get("q") ?? "", oninput: () => turn(0) });
  const count = el("span", { class: "small", role: "status" }), body = el("div");
  main.append(el("h1", {}, about.title), ...(about.intro ? [el("p", { class: "small" }, about.intro)] : []), el("div", { class: "tools" }, filter, count), body);

  function turn(to) {
    skip = to;
    const address = new URLSearchParams([["q", filter.value.trim()], ["skip", skip ? String(skip) : ""]].filter(([, value]) => value));
    history.replaceState(null, "", address.size ? `?${address}` : location.pathname);
    if (answers) renew(body, draw());
  }
  const button = (label, to, usable) => el("button", { type: "button", disabled: !usable, onclick: () => { turn(to); scrollTo(0, 0); } }, label);
  function draw() {
    const words = filter.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const fitting = words.length ? found.filter(([text]) => words.every((word) => text.includes(word))) : found;
    // The list may have become shorter since.
    if (skip >= fitting.length) skip = 0;
    count.textContent = words.length ? `${fitting.length.toLocaleString()} of ${found.length.toLocaleString()}` : found.length ? found.length.toLocaleString() : "";
    return [about.above?.(...answers) ?? "", table(about.heads, fitting.slice(skip, skip + PAGE_ROWS).map(([, cells]) => cells()), words.length ? "Nothing matches the filter." : about.empty),
      fitting.length > PAGE_ROWS ? el("nav", { class: "tools", "aria-label": "More rows" }, button("← Previous", Math.max(0, skip - PAGE_ROWS), skip > 0), button("Next →", skip + PAGE_ROWS, skip + PAGE_ROWS < fitting.length), el("span", { class: "small" }, `${(skip + 1).toLocaleString()} to ${Math.min(fitting.length, skip + PAGE_ROWS).toLocaleString()} of ${fitting.length.toLocaleString()}`)) : ""];
  }
  return watch(about.urls, body, (...got) => {
    answers = got;
    found = about.rows(...got).map(([text, cells]) => [text.toLowerCase(), cells]);
    return draw();
  }, about.every ?? 5000);
}
