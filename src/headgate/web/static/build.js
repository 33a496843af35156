import { api, bearing, el, facts, fetched, copy, instant, link, login, look, main, nav, outside, people, short, subject as uuid, table, tenant, token, took, trouble, when } from "./page.js";
import { alive, keep, over } from "./live.js";
import { button, post, project } from "./acts.js";
import { plain } from "./colours.js";
import { also } from "./keys.js";
import { Console } from "./console.js";
import { Lines, stamp } from "./lines.js";
import { preview } from "./preview.js";

nav("", "Build");
main.classList.add("tall");
const raw = `/t/${encodeURIComponent(tenant)}/logs/${encodeURIComponent(uuid)}/job-output.txt`;
const asked = (headers) => fetch(raw, { headers: { ...bearing(), Accept: "text/plain", ...headers } });
const title = el("h1"), about = el("div", { class: "about" });
const lines = new Lines(async (first, last) => {
  const answer = await asked({ Range: `bytes=${first}-${last}` });
  if (answer.status !== 206) throw new Error(`${raw} answered ${answer.status}`);
  return new Uint8Array(await answer.arrayBuffer());
});
const view = new Console(lines, "Log of the build");

// --- the tools above the log
const follow = el("input", { type: "checkbox", checked: true, onchange: () => { view.follow = follow.checked; if (follow.checked) view.end(); } });
const narrow = matchMedia("(max-width: 45rem)").matches;
const times = el("input", { type: "checkbox", checked: !narrow, onchange: () => { view.times = times.checked; view.grew(); } });
const search = el("input", { type: "search", placeholder: "Find in log", "aria-label": "Find in log", oninput: () => view.search(search.value), onkeydown: (e) => e.key === "Enter" && view.step(e.shiftKey ? -1 : 1) });
const hits = el("span", { class: "small", role: "status" });
const why = el("p", { class: "why", hidden: true }), steps = el("details", { class: "steps", hidden: true }), listed = el("ol", { class: "plain" });
const all = el("button", { type: "button", onclick: () => { const shut = all.textContent === "Fold all"; all.textContent = shut ? "Unfold all" : "Fold all"; view.fold(lines.steps.map((one) => one.line), shut); } }, "Fold all");
steps.append(el("summary", {}, "Steps"), listed);
view.times = !narrow;
view.onscroll = () => { follow.checked = view.follow; };
view.onhits = (going) => { hits.textContent = view.hits.length ? `${view.here + 1} of ${view.full ? "more than " : ""}${view.hits.length}${going ? "…" : ""}` : !search.value ? "" : going ? "looking…" : "not found"; };
const tools = el("div", { class: "tools" }, el("label", {}, follow, " Follow"), el("label", {}, times, " Times"), search, el("button", { type: "button", onclick: () => view.step(-1), "aria-label": "Previous match" }, "↑"), el("button", { type: "button", onclick: () => view.step(1), "aria-label": "Next match" }, "↓"), hits, all, el("a", { href: raw, class: "right" }, "Raw log"));
main.append(title, about, why, steps, tools, view.log);
document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "f" && lines.failure >= 0) jump(lines.failure);
});

also(["f", "Go to the first failure"]);
function jump(line) { view.follow = follow.checked = false; view.go(line); view.mark(line); }

const STEPS_MAX = 500, CASES_SHOWN = 100;
let told = 0, soon = 0, final = false;
function add(data) {
  lines.feed(data);
  view.grew();
  if (search.value) view.searched();
  if (lines.failure >= 0 && why.hidden) first();
  if (told !== lines.steps.length && !soon) soon = setTimeout(outline, 200);
}

function outline() {
  clearTimeout(soon);
  [told, soon, steps.hidden] = [lines.steps.length, 0, lines.steps.length < 2];
  const few = lines.steps.length <= STEPS_MAX ? lines.steps : lines.steps.filter((one) => one.failed || one.level < 2).slice(0, STEPS_MAX);
  listed.replaceChildren(...few.map((one) => el("li", { class: `step${one.level}` }, el("a", { href: `#L${one.line + 1}`, class: one.failed ? "result bad" : "", onclick: (event) => { event.preventDefault(); jump(one.line); } }, one.failed ? `✘ ${one.name}` : one.name))));
}

function first() {
  outline();
  const line = lines.failure, text = plain(lines.at(line) ?? "");
  why.hidden = false;
  why.replaceChildren("First failure: ", el("a", { href: `#L${line + 1}`, onclick: (event) => { event.preventDefault(); jump(line); } }, `line ${line + 1}`), " ", el("code", {}, text.slice(stamp(text))));
}

// --- what is known of the build
let clock = 0;
const acts = el("div", { class: "acts" });
function offer(b) {
  const stop = { permission: "dequeue", label: "Cancel", title: `Stop ${b.job_name}?`, verb: "Stop it", what: "The job counts as one that did not pass. Where the pipeline lands changes, what comes behind the change is tested anew without it.", send: (body) => post(`build/${encodeURIComponent(uuid)}/cancel`, body) };
  const keep = { permission: "autohold", label: "Hold", title: `Keep ${b.job_name} when it fails?`, verb: "Hold", why: true, what: `Work directories and machines of the next builds of this job of ${short(b.ref.project)} that fail are kept. Nothing is tested anew.`,
    fields: [{ name: "count", label: "How many builds", type: "number", value: 1, required: true }], send: ({ count, reason }) => post(project({ project: short(b.ref.project) }, "autohold"), { job: b.job_name, count, reason }) };
  const anew = { permission: "enqueue", label: "Run again", title: `Run ${b.job_name} again?`, verb: "Run it again", what: "This job runs once more on the same state, and with it the jobs that depend on it. Where the pipeline lands changes, what comes behind the change is tested anew on top of it. Only as long as the change is in its queue; use Enqueue again at its buildset afterwards.", send: (body) => post(`build/${encodeURIComponent(uuid)}/rerun`, body), done: () => location.assign(`/t/${encodeURIComponent(tenant)}/status`) };
  const failed = b.result !== null && !["SUCCESS", "SKIPPED"].includes(b.result) && b.final && !b.buildset.result;
  acts.replaceChildren(...(b.result === null ? [button(stop)] : []), ...(failed ? [button(anew)] : []), button(keep));
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
    ["Nodes", b.nodeset], ["Image", b.image], ["Error", b.error_detail], ["Held", b.held ? el("a", { href: `/t/${encodeURIComponent(tenant)}/autoholds` }, "yes: what it used is kept") : ""], ["Attempt", b.attempt > 1 || !b.final && final ? `${b.attempt}${b.final || !final ? "" : ": it counts for nothing, as it was tried again or its buildset gave way to another"}` : ""], ["Report", final ? link("buildset", b.buildset.uuid, "of the whole buildset") : ""],
    ["Build", [el("code", {}, uuid), " ", copy(uuid, "the id of the build")]],
    ["Artifacts", made.length ? el("ul", { class: "plain" }, made.map((a) => el("li", {}, outside(a.url, a.name), preview(a, uuid)))) : ""],
    ["Logs", b.log_url ? outside(b.log_url, b.log_url) : ""], ["Not kept", b.log_missing],
  ]));
  about.append(acts);
  offer(b);
  if (b.result && b.result !== "SUCCESS") before(b);
  return b;
}

// What to compare a failure with: the last time that the job passed, of the same project and branch.
async function before(b) {
  const query = new URLSearchParams({ job_name: b.job_name, project: b.ref.project, result: "SUCCESS", complete: "true", limit: "1" });
  if (b.ref.branch) query.set("branch", b.ref.branch);
  const [last] = await fetched(`${api}/builds?${query}`).catch(() => []);
  if (last && !about.querySelector(".before")) about.querySelector("dl").append(el("dt", { class: "before" }, "Last passed"), el("dd", {}, link("build", last.uuid, last.ref.change || last.ref.ref || last.ref.branch), " ", when(last.end_time), last.duration ? ` in ${took(last.duration * 1000)}` : ""));
}

async function files() {
  const found = await fetched(`${api}/build/${encodeURIComponent(uuid)}/logs`).catch(() => []);
  const others = found.filter((file) => file.path !== "job-output.txt");
  if (others.length && !about.querySelector("details")) about.append(el("details", {}, el("summary", {}, `${others.length} more log ${others.length === 1 ? "file" : "files"}`),
    el("ul", { class: "plain" }, others.map((file) => el("li", {}, el("a", { href: file.url }, file.path), el("span", { class: "small" }, ` ${file.size_bytes.toLocaleString()} bytes`))))));
}

// What its tests say, if it left files that tell.
async function tests() {
  const found = await fetched(`${api}/build/${encodeURIComponent(uuid)}/tests`).catch(() => null);
  if (!found || !(found.files.length || found.troubles.length) || about.querySelector(".tests")) return;
  const total = found.passed + found.failed + found.errors + found.skipped, bad = found.failed + found.errors;
  const LOOK = { passed: "good", skipped: "mute" };
  const row = (one) => [el("span", { class: `result ${LOOK[one.status] ?? "bad"}` }, one.status), [one.name, el("span", { class: "small under" }, one.suite)], one.seconds === null ? "" : `${one.seconds.toFixed(2)} s`, one.message ? el("pre", { tabindex: 0 }, one.message) : ""];
  const told = [`${total.toLocaleString()} tests`, bad ? `${bad.toLocaleString()} did not pass` : "", found.skipped ? `${found.skipped.toLocaleString()} skipped` : "", took(found.seconds * 1000)].filter(Boolean).join(" · ");
  about.append(el("details", { class: "tests", open: bad > 0 }, el("summary", {}, told), ...found.troubles.map((text) => el("p", { class: "note bad" }, text)),
    el("div", { class: "cases" }, table(["Result", "Test", "Took", "What it says"], found.cases.slice(0, CASES_SHOWN).map(row), "No test was reported.")), found.cases.length > CASES_SHOWN || total > found.cases.length ? el("p", { class: "small" }, "What did not pass is first, then what was skipped, then the slowest. The files have the rest.") : ""));
}

// --- the log: what there is of it, then what comes, resumed where it broke off
async function read() {
  const answer = await asked({});
  if (!answer.ok) return false;
  const parts = answer.body.getReader();
  for (let part = await parts.read(); !part.done; part = await parts.read()) add(part.value);
  return true;
}

const bytes = new TextEncoder();
// One connection: it ends with the log, or is begun again where it broke off.
const stream = () => keep((signal, good) => new Promise((done, failed) => {
  const socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}${api}/console-stream`);
  signal.addEventListener("abort", () => socket.close());
  socket.onopen = async () => { alive(); socket.send(JSON.stringify({ uuid, logfile: "console.log", offset: lines.bytes, token: token(), csrf: (await login).csrf })); };
  socket.onmessage = (event) => { if (signal.aborted) return; good(); alive(); add(bytes.encode(event.data)); };
  socket.onclose = async (event) => {
    if (signal.aborted) return done(null);
    if (event.code === 1000) return done(await ended().then(() => null));
    if (event.code !== 4011) return failed(new Error(event.reason || "the connection broke off"));
    over("");
    if (!lines.count) view.log.textContent = event.reason;
    return done(null);
  };
}));

// The result is recorded a moment after the log ends.
async function ended() {
  over();
  for (const pause of [0, 300, 1000, 3000]) {
    await new Promise((done) => setTimeout(done, pause));
    const b = await summary().catch(() => null);
    if (b?.result) break;
  }
  await Promise.all([files(), tests()]);
}

// Where who opens the page wants to be: at the lines the address names, else at what failed, else at the end.
function begin() {
  const named = /^#L(\d+)(?:-(\d+))?$/.exec(location.hash);
  if (named) {
    jump(Number(named[1]) - 1);
    view.mark(Number(named[1]) - 1, Number(named[2] ?? named[1]) - 1);
  } else if (lines.failure >= 0) jump(lines.failure);
}

try {
  await summary();
  await Promise.all([files(), final ? tests() : null]);
  const there = await read();
  begin();
  if (!final) stream();
  else if (!there) { view.log.textContent = "The log is not here (any more)."; tools.remove(); }
  else over();
} catch (error) {
  tools.remove();
  view.log.remove();
  trouble(error);
}
