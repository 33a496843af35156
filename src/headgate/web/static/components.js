import { el, fetched, main, nav, table, trouble } from "./page.js";
nav("components", "Processes");
const AGAIN_MS = 3000;
const body = el("div");
main.append(el("h1", {}, "Processes"), body);
const look = (c) => (c.state === "running" ? (c.accepting ? "good" : "busy") : "mute");
function row(c) {
  const state = el("span", { class: `result ${look(c)}` }, c.state === "running" && !c.accepting ? "full" : c.state);
  const work = c.places ? el("span", { title: `${c.running} of ${c.places} places are taken` }, `${c.running} of ${c.places}`) : "";
  return [c.name, [state, c.why ? el("span", { class: "small" }, ` ${c.why}`) : ""], work, c.zone, c.hostname, String(c.pid), c.version];
}
async function draw() {
  try {
    const found = await fetched("/api/components");
    const rows = Object.entries(found).sort().flatMap(([, all]) => all.map(row));
    body.replaceChildren(table(["Process", "State", "Work", "Zone", "Host", "Pid", "Version"], rows, "No process takes part just now."));
  } catch (error) { body.replaceChildren(); trouble(error); return; }
  setTimeout(draw, AGAIN_MS);
}
draw();
