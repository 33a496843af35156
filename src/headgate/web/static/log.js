// A private log file, which is requested with the token of the logged-in person.
import { bearing, el, link, main, nav, parts, token, showError } from "./page.js";
import { coloured } from "./colours.js";

const [, , , build, ...file] = parts.slice(1), name = file.join("/");
nav("", name);
main.classList.add("tall");
const log = el("pre", { id: "log", tabindex: 0, role: "log", "aria-label": name });
main.append(el("h1", {}, name), el("p", {}, link("build", build, `Build ${build}`)));

async function read() {
  if (!token()) throw Object.assign(new Error("Log in to read this log."), { status: 401 });
  const answer = await fetch(location.pathname, { headers: { ...bearing(), Accept: "text/plain" } });
  if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).description ?? `${answer.status}`);
  main.append(log);
  const pieces = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (let piece = await pieces.read(); !piece.done; piece = await pieces.read()) {
    const lines = (rest + piece.value).split("\n");
    rest = lines.pop();
    log.append(coloured(lines.map((line) => `${line}\n`).join("")));
  }
  log.append(coloured(rest));
}

read().catch(showError);
