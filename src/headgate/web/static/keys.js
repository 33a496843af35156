// Keyboard shortcuts of every page: / goes to the search field, j and k move along the rows, ? shows all shortcuts.
import { el } from "./page.js";

const KNOWN = [["/", "Go to the search field"], ["j", "Next row"], ["k", "Previous row"], ["Enter", "Open the row"], ["Esc", "Leave a field or this list"], ["?", "Show this list"]];
const ROWS = "main tbody tr, main .item, main .card, main .rowlike";
const more = [];

// Register keys of one page: [key, description].
export const also = (...keys) => more.push(...keys);

const first = (row) => row.querySelector("a[href], button:not([hidden]), summary");
const seen = (row) => row.checkVisibility?.() ?? true;
function step(by) {
  const rows = [...document.querySelectorAll(ROWS)].filter((row) => first(row) && seen(row));
  const at = rows.findIndex((row) => row.contains(document.activeElement));
  const row = rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, at + by))];
  if (!row) return;
  first(row).focus({ preventScroll: true });
  row.scrollIntoView({ block: "nearest" });
}

function help() {
  const list = el("dl", {}, [...KNOWN, ...more].map(([key, what]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, what)]));
  const box = el("dialog", { "aria-labelledby": "keys-title", onclose: () => box.remove() }, el("h2", { id: "keys-title" }, "Keyboard shortcuts"), list, el("p", { class: "tools" }, el("button", { type: "button", onclick: () => box.close() }, "Close")));
  document.body.append(box);
  box.showModal();
}

document.addEventListener("keydown", (event) => {
  const held = /** @type {HTMLElement} */ (document.activeElement), typing = held?.matches("input:not([type=checkbox]), textarea, select");
  if (event.key === "Escape" && typing && !held.closest("dialog")) { held.blur(); return; }
  if (typing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.key === "/") {
    const field = document.querySelector("main input[type=search]:not([hidden])");
    if (field instanceof HTMLInputElement) { event.preventDefault(); field.focus(); field.select(); }
  } else if (event.key === "j" || event.key === "k") step(event.key === "j" ? 1 : -1);
  else if (event.key === "?") help();
  else return;
  if (event.key !== "/") event.preventDefault();
});
