import { api, el, fetched, link, look, nav, short, took, uuid } from "./common.js";
nav("");
const main = document.getElementById("main");
const log = el("pre", { id: "log", tabindex: 0, "aria-label": "Log" }), title = el("h1"), facts = el("dl");
const follow = el("input", { type: "checkbox", checked: true, id: "follow" });
const search = el("input", { type: "search", placeholder: "Find in log", "aria-label": "Find in log", oninput: () => draw() });
const state = document.getElementById("link");
main.append(title, facts, el("div", { class: "tools" }, el("label", {}, follow, " follow"), search, el("a", { href: `/logs/${encodeURIComponent(uuid)}/job-output.txt` }, "whole log")), log);
let text = "";

function draw() {
  const word = search.value;
  if (!word) log.textContent = text;
  else {
    const pieces = text.split(word);
    log.replaceChildren(...pieces.flatMap((piece, n) => (n ? [el("mark", {}, word), piece] : [piece])));
    log.querySelector("mark")?.scrollIntoView({ block: "center" });
  }
  if (follow.checked && !word) log.scrollTop = log.scrollHeight;
}

function add(chunk) {
  text += chunk;
  if (search.value) return draw();
  log.append(chunk);
  if (follow.checked) log.scrollTop = log.scrollHeight;
}

async function summary() {
  try {
    const b = await fetched(`${api}/build/${encodeURIComponent(uuid)}`);
    const result = b.result ?? (b.running ? "running" : "queued");
    title.replaceChildren(`${b.job_name} `, el("span", { class: `result ${b.result ? look(b.result) : "busy"}` }, result));
    const rows = [["Project", short(b.ref.project_canonical ?? b.ref.project)], ["Change", b.ref.change || b.ref.ref], ["Branch", b.ref.branch], ["Pipeline", b.pipeline],
      ["Took", b.duration ? took(b.duration * 1000) : took(b.elapsed_time)], ["Error", b.error_detail]];
    facts.replaceChildren(...rows.filter(([, v]) => v).flatMap(([k, v]) => [el("dt", {}, k), el("dd", {}, v)]));
    if (b.final) facts.append(el("dt", {}, "Buildset"), el("dd", {}, link("buildset", b.buildset.uuid, "report")));
    return b.final;
  } catch (error) { title.textContent = error.message; return false; }
}

await summary();
const socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}${api}/console-stream`);
socket.onopen = () => { state.textContent = "live"; socket.send(JSON.stringify({ uuid, logfile: "console.log" })); };
socket.onmessage = (event) => add(event.data);
socket.onclose = (event) => {
  state.textContent = event.code === 1000 ? "complete" : "";
  if (event.code !== 1000) add(`${event.reason || "The connection was lost."}\n`);
  summary();
};
