// Show untrusted text: characters that are invisible or change the text direction are replaced by their names.
import { el } from "./page.js";

const ODD = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202f\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffd]|[\u{e0000}-\u{e0fff}]/gu;
const NAMES = { 0x0d: "CR", 0x1b: "ESC", 0x00: "NUL", 0xfffd: "�", 0x202a: "LRE", 0x202b: "RLE", 0x202c: "PDF", 0x202d: "LRO", 0x202e: "RLO", 0x2066: "LRI", 0x2067: "RLI", 0x2068: "FSI", 0x2069: "PDI", 0x200b: "ZWSP", 0x200e: "LRM", 0x200f: "RLM", 0xfeff: "BOM" };

// Parts for `el`: plain text, and a mark for each character that is odd.
export function odd(text) {
  const parts = [];
  let from = 0;
  for (const { 0: character, index } of text.matchAll(ODD)) {
    const code = character.codePointAt(0), name = `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
    if (index > from) parts.push(text.slice(from, index));
    parts.push(el("span", { class: "odd", title: name }, NAMES[code] ?? name));
    from = index + character.length;
  }
  if (from < text.length) parts.push(text.slice(from));
  return parts;
}
