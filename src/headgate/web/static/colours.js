// The colours of a log line as elements; colours are the only terminal sequences that a log contains.
import { el } from "./page.js";

const SEQUENCE = /\x1b\[([\d;]*)m/;

function long(codes) {  // 5;N from a palette, or 2;R;G;B; removes them from the codes
  if (codes.shift() === 2) return `rgb(${codes.splice(0, 3).join(",")})`;
  const n = codes.shift(), cube = (at) => { const step = Math.floor((n - 16) / at) % 6; return step ? 55 + 40 * step : 0; };
  return n < 16 ? n : n < 232 ? `rgb(${cube(36)},${cube(6)},${cube(1)})` : `rgb(${Array(3).fill(8 + 10 * (n - 232)).join(",")})`;
}

function changed(was, codes) {
  let now = { ...was };
  while (codes.length) {
    const code = codes.shift();
    if (code === 0) now = {};
    else if (code === 22) now = { ...now, bold: false, faint: false };
    else if (code >= 1 && code <= 7) now[{ 1: "bold", 2: "faint", 3: "italic", 4: "underlined", 7: "turned" }[code]] = true;
    else if (code >= 23 && code <= 27) now[{ 23: "italic", 24: "underlined", 27: "turned" }[code]] = false;
    else if (code === 38) now.ink = long(codes);
    else if (code === 48) now.paper = long(codes);
    else if (code >= 30 && code <= 39) now.ink = code === 39 ? undefined : code - 30;
    else if (code >= 40 && code <= 49) now.paper = code === 49 ? undefined : code - 40;
    else if (code >= 90) now.ink = code - 82;
  }
  return now;
}

function shown(text, look) {
  const names = ["bold", "faint", "italic", "underlined", "turned"].filter((name) => look[name]);
  for (const part of ["ink", "paper"]) if (typeof look[part] === "number") names.push(`${part}${part === "paper" ? look[part] % 8 : look[part]}`);
  if (!text || !names.length && look.ink === undefined && look.paper === undefined) return text;
  const node = el("span", { class: names.join(" ") }, text);
  // Set as a property: the content security policy blocks style attributes
  // in markup, and a property cannot contain anything but a colour.
  if (typeof look.ink === "string") node.style.color = look.ink;
  if (typeof look.paper === "string") node.style.backgroundColor = look.paper;
  return node;
}

export function coloured(text) {
  const made = document.createDocumentFragment();  // not a list, which could be too long to pass as arguments
  let look = {};
  text.split(SEQUENCE).forEach((part, n) => {
    if (n % 2) look = changed(look, part.split(";").map(Number));
    else if (part) made.append(shown(part, look));
  });
  return made;
}
