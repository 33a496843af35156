import { api, el, facts, fetched, instant, link, login, look, main, nav, outside, people, short, state, subject as uuid, tenant, token, took, trouble, when } from "./page.js";
import { button, post, project } from "./acts.js";
import { coloured, plain } from "./colours.js";

nav("", "Build");
main.classList.add("tall");
const LINES_MAX = 5000, PIECE_LINES = 200, TAIL_BYTES = 1 << 19, MATCHES_MAX = 1000;
const raw = `/t/${encodeURIComponent(tenant)}/logs/${encodeURIComponent(uuid)}/job-output.txt`;
const title = el("h1"), about = el("div", { class: "about" });
const log = el("pre", { id: "log", tabindex: 0, role: "log", "aria-label": "Log of the build", "aria-live": "off" });
const older = el("p", { class: "note", hidden: true }, "Older lines are in the ", el("a", { href: raw }, "raw log"), ".");
const follow = el("input", { type: "checkbox", id: "follow", onchange: () => follow.checked && end() });
const search = el("input", { type: "search", placeholder: "Find in log", "aria-label": "Find in log", oninput: () => mark(), onkeydown: (e) => e.key === "Enter" && step(e.shiftKey ? -1 : 1) });
const hits = el("span", { class: "small", role: "status" });
follow.checked = true;
const tools = el("div", { class: "tools" }, el("label", {}, follow, " Follow"), search, el("button", { type: "button", onclick: () => step(-1), "aria-label": "Previous match" }, "↑"), el("button", { type: "button", onclick: () => step(1), "aria-label": "Next match" }, "↓"), hits, el("a", { href: raw, class: "right" }, "Raw log"));
main.append(title, about, tools, older, log);

// --- the log: pieces of lines, the oldest of which go when there are too many
let pieces = [], partial = "", lines = 0, offset = 0, at = -1, final = false;
const bytes = new TextEncoder();

function add(text) {
  offset += bytes.encode(text).length;
  const fresh = (partial + text).split("\n");
  partial = fresh.pop();
  while (fresh.length) {
    let last = pieces.at(-1);
    if (!last || last.lines.length >= PIECE_LINES) { last = { lines: [], node: el("span") }; pieces.push(last); log.append(last.node); }
    const some = fresh.splice(0, PIECE_LINES - last.lines.length);
    last.lines.push(...some);
    lines += some.length;
    if (search.value) paint(last); else last.node.append(coloured(`${some.join("\n")}\n`));
  }
  while (lines > LINES_MAX && pieces.length > 1) {
    const gone = pieces.shift();
    lines -= gone.lines.length;
    gone.node.remove();
    older.hidden = false;
  }
  if (follow.checked) end();
}

const end = () => { log.scrollTop = log.scrollHeight; };
log.addEventListener("scroll", () => { follow.checked = log.scrollHeight - log.scrollTop - log.clientHeight < 4; });

function paint(piece) {
  const whole = `${piece.lines.join("\n")}\n`, wanted = search.value.toLowerCase(), found = [];
  if (!wanted) return piece.node.replaceChildren(coloured(whole));
  const text = plain(whole);
  const lower = text.toLowerCase();
  let from = 0;
  for (let n = lower.indexOf(wanted); n >= 0; n = lower.indexOf(wanted, from)) {
    found.push(text.slice(from, n), el("mark", {}, text.slice(n, n + wanted.length)));
    from = n + wanted.length;
  }
  piece.node.replaceChildren(...found, text.slice(from));
}

function mark() {
  at = -1;
  pieces.forEach(paint);
  step(1);
}

function step(by) {
  const found = log.querySelectorAll("mark");
  log.querySelector("mark.here")?.classList.remove("here");
  hits.textContent = !search.value ? "" : found.length ? "" : "not found";
  if (!found.length) return;
  follow.checked = false;
  at = (at + by + found.length) % found.length;
  found[at].classList.add("here");
  found[at].scrollIntoView({ block: "center" });
  hits.textContent = `${at + 1} of ${found.length > MATCHES_MAX ? `more than ${MATCHES_MAX}` : found.length}`;
}

// --- what is known of the build
let clock = 0;
const acts = el("div", { class: "acts" });
function offer(b) {
  const stop = { permission: "dequeue", label: "Cancel", title: `Stop ${b.job_name}?`, verb: "Stop it", what: "The job counts as one that did not pass. Where the pipeline lands changes, what comes behind the change is tested anew without it.", send: (body) => post(`build/${encodeURIComponent(uuid)}/cancel`, body) };
  const keep = { permission: "autohold", label: "Hold", title: `Keep ${b.job_name} when it fails?`, verb: "Hold", why: true, what: `Work directories and machines of the next builds of this job of ${short(b.ref.project)} that fail are kept. Nothing is tested anew.`,
    fields: [{ name: "count", label: "How many builds", type: "number", value: 1, required: true }], send: ({ count, reason }) => post(project({ project: short(b.ref.project) }, "autohold"), { job: b.job_name, count, reason }) };
  acts.replaceChildren(...(b.result === null ? [button(stop)] : []), button(keep));
}
async function summary() {
  const b = await fetched(`${api}/build/${encodeURIComponent(uuid)}`);
  final = b.result !== null;
  clearInterval(clock);
  const result = b.result ?? (b.start_time ? "running" : "queued"), change = b.ref.change || b.ref.ref;
  document.title = `${b.job_name} ${result} · Headgate`;
  title.replaceChildren(link("job", b.job_name, b.job_name), " ", el("span", { class: `result ${b.result ? look(b.result) : "busy"}` }, result));
  const lasted = el("span"), start = instant(b.start_time);
  const tell = () => { lasted.textContent = b.duration ? took(b.duration * 1000) : start ? `${took(Date.now() - start)}${b.estimated_time * 1000 > Date.now() - start ? ` of about ${took(b.estimated_time * 1000)}` : ""}` : ""; };
  tell();
  if (!b.end_time && start) clock = setInterval(tell, 1000);
  const made = b.artifacts.filter((a) => a.metadata?.type !== "zuul_manifest");
  about.replaceChildren(facts([
    ["Project", link("project", b.ref.project, short(b.ref.project))], ["Change", b.ref.ref_url ? outside(b.ref.ref_url, change) : change], ["Branch", b.ref.branch], ...people(b.ref),
    ["Pipeline", link("status", b.pipeline, b.pipeline)], ["Began", when(b.start_time)], ["Took", lasted.textContent ? lasted : ""], ["Voting", b.voting ? "" : "no: its result does not count"],
    ["Nodes", b.nodeset], ["Error", b.error_detail], ["Held", b.held ? el("a", { href: `/t/${encodeURIComponent(tenant)}/autoholds` }, "yes: what it used is kept") : ""], ["Attempt", b.attempt > 1 || !b.final && final ? `${b.attempt}${b.final || !final ? "" : ": it counts for nothing, as it was tried again or its buildset gave way to another"}` : ""], ["Report", final ? link("buildset", b.buildset.uuid, "of the whole buildset") : ""],
    ["Artifacts", made.length ? el("ul", { class: "plain" }, made.map((a) => el("li", {}, outside(a.url, a.name)))) : ""],
    ["Logs", b.log_url ? outside(b.log_url, b.log_url) : ""], ["Not kept", b.log_missing],
  ]));
  about.append(acts);
  offer(b);
  return b;
}

async function files() {
  const found = await fetched(`${api}/build/${encodeURIComponent(uuid)}/logs`).catch(() => []);
  const others = found.filter((file) => file.path !== "job-output.txt");
  if (others.length && !about.querySelector("details")) about.append(el("details", {}, el("summary", {}, `${others.length} more log ${others.length === 1 ? "file" : "files"}`),
    el("ul", { class: "plain" }, others.map((file) => el("li", {}, el("a", { href: file.url }, file.path), el("span", { class: "small" }, ` ${file.size_bytes.toLocaleString()} bytes`))))));
  return found.find((file) => file.path === "job-output.txt")?.size_bytes ?? 0;
}

// --- the stream, resumed where it broke off
let wait = 500;
function stream() {
  const socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}${api}/console-stream`);
  socket.onopen = async () => { state.className = "live"; state.textContent = final ? "" : "live"; socket.send(JSON.stringify({ uuid, logfile: "console.log", offset, token: token(), csrf: (await login).csrf })); };
  socket.onmessage = (event) => { wait = 500; add(event.data); };
  socket.onclose = async (event) => {
    if (event.code === 1000) {
      if (partial) add("\n");
      state.className = "";
      state.textContent = "complete";
      await ended();
    } else if (event.code === 4011) {
      state.textContent = "";
      if (!lines) log.textContent = final ? "The log is not here (any more)." : event.reason;
    } else {
      state.className = "lost";
      state.textContent = "connection lost, trying again…";
      setTimeout(stream, wait);
      wait = Math.min(wait * 2, 30000);
    }
  };
}

// The result is recorded a moment after the log ends.
async function ended() {
  for (const pause of [0, 300, 1000, 3000]) {
    await new Promise((done) => setTimeout(done, pause));
    const b = await summary().catch(() => null);
    if (b?.result) break;
  }
  await files();
}

try {
  await summary();
  const size = await files();
  if (size > TAIL_BYTES) { offset = size - TAIL_BYTES; older.hidden = false; }
  stream();
} catch (error) {
  tools.remove();
  log.remove();
  trouble(error);
}
