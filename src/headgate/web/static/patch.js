// The diff of one file as rows, in one column or side by side.
import { el } from "./page.js";
import { odd } from "./odd.js";

const KIND = { "+": "plus", "-": "minus", " ": "same", "@": "hunk", "\\": "hunk" };
const WORDS_MAX = 400;

// For a line that replaces another: the lengths of their common beginning and end, in characters.
function middle(one, other) {
  if (one.length > WORDS_MAX || other.length > WORDS_MAX) return null;
  const most = Math.min(one.length, other.length);
  let before = 0, behind = 0;
  while (before < most && one[before] === other[before]) before++;
  while (behind < most - before && one[one.length - 1 - behind] === other[other.length - 1 - behind]) behind++;
  // Lines that share less are not versions of each other: marking almost everything would not help.
  return before + behind > most / 3 ? [before, behind] : null;
}

// Pairs of removed lines and the added lines that replace them, by index.
function pairs(lines) {
  const found = new Map();
  for (let n = 0; n < lines.length; n++) {
    if (lines[n][0] !== "-") continue;
    let added = n;
    while (lines[added]?.[0] === "-") added++;
    let end = added;
    while (lines[end]?.[0] === "+") end++;
    for (let k = 0; n + k < added && added + k < end; k++) { found.set(n + k, added + k); found.set(added + k, n + k); }
    n = end - 1;
  }
  return found;
}

function words(text, same) {
  if (!same) return odd(text);
  const [before, behind] = same, end = text.length - behind;
  return [...odd(text.slice(0, before)), end > before ? el("b", {}, odd(text.slice(before, end))) : "", ...odd(text.slice(end))];
}

const cell = (line, same) => [el("span", { class: "mark", "aria-hidden": "true" }, "+-".includes(line[0]) ? line[0] : ""), el("span", { class: "code" }, "+-".includes(line[0]) ? el("span", { class: "hidden" }, line[0] === "+" ? "added: " : "removed: ") : "", words(line[3], same), line[4] ? el("i", {}, ` … ${line[4].toLocaleString()} more bytes`) : "")];

// `spot(side, number)` returns what to show as the number of a line, which may be a button.
export function rows(lines, wide, spot) {
  const partners = pairs(lines), same = (n) => (partners.has(n) ? middle(lines[n][3], lines[partners.get(n)][3]) : null);
  const number = (side, line) => el("span", { class: "no" }, line[side === "old" ? 1 : 2] ? spot(side, line[side === "old" ? 1 : 2]) : "");
  if (!wide) return lines.map((line, n) => el("div", { class: `line ${KIND[line[0]] ?? "hunk"}`, "data-old": line[1] || null, "data-new": line[2] || null }, number("old", line), number("new", line), cell(line, same(n))));
  const made = [], half = (side, line, n) => (line ? el("div", { class: `line ${KIND[line[0]]}` }, number(side, line), cell(line, same(n))) : el("div", { class: "line none" }));
  for (let n = 0; n < lines.length; n++) {
    const line = lines[n], other = partners.get(n);
    if (line[0] === "+" && other !== undefined) continue;
    if (KIND[line[0]] === "hunk" || !KIND[line[0]]) made.push(el("div", { class: "line hunk whole" }, cell(line)));
    else if (line[0] === " ") made.push(el("div", { class: "two", "data-old": line[1], "data-new": line[2] }, half("old", line, n), half("new", line, n)));
    else made.push(el("div", { class: "two", "data-old": line[0] === "-" ? line[1] : null, "data-new": line[0] === "+" ? line[2] : other !== undefined ? lines[other][2] : null }, half("old", line[0] === "-" ? line : null, n), half("new", line[0] === "+" ? line : other !== undefined ? lines[other] : null, line[0] === "+" ? n : other)));
  }
  return made;
}
