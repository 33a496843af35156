import { el, main, nav, sent, table } from "./page.js";
import { watch } from "./live.js";
import { button } from "./acts.js";
nav("components", "Processes");
const body = el("div");
main.append(el("h1", {}, "Processes"), body);
const look = (c) => (c.state === "running" ? (c.accepting ? "good" : "busy") : "mute");
function pauseButton(c) {
  const paused = c.state === "paused";
  return button({ permission: "*", label: paused ? "Resume" : "Pause", name: `${paused ? "Resume" : "Pause"} ${c.name}`, title: paused ? `Resume ${c.name}?` : `Pause ${c.name}?`, what: paused ? "It accepts new work again. Nothing is tested again." : "It finishes its current work and accepts no new work until somebody resumes it. Nothing is tested again.",
    send: ({ reason }) => sent("POST", `/api/component/${c.name.split("/").map(encodeURIComponent).join("/")}`, { state: paused ? "running" : "paused", reason }) });
}
function row(c) {
  const state = el("span", { class: `result ${look(c)}` }, c.state === "running" && !c.accepting ? "full" : c.state);
  const work = c.places ? el("span", { title: `${c.running} of ${c.places} places are in use` }, `${c.running} of ${c.places}`) : "";
  return [c.name, [state, c.why ? el("span", { class: "small" }, ` ${c.why}`) : "", " ", pauseButton(c)], work, c.zone, c.hostname, String(c.pid), c.version];
}
watch("/api/components", body, (found) => table(["Process", "State", "Work", "Zone", "Host", "Pid", "Version"], Object.entries(found).sort().flatMap(([, all]) => all.map(row)), "No component is running."));
