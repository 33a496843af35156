import { api, el, facts, fetched, copy, instant, link, login, look, main, nav, outside, people, short, subject as uuid, table, tenant, token, took, showError, when } from "./page.js";
import { alive, keep, over } from "./live.js";
import { button, post, project } from "./acts.js";
import { also } from "./keys.js";
import { compare } from "./comparing.js";
import { Console } from "./console.js";
import { fetchLog, linesOf } from "./joblog.js";
import { remarked } from "./linecomments.js";
import { plain, stamp } from "./printed.js";
import { preview } from "./preview.js";

nav("", "Build");
main.classList.add("tall");
const logOf = (build) => `/t/${encodeURIComponent(tenant)}/logs/${encodeURIComponent(build)}/job-output.txt`;
const raw = logOf(uuid);
const title = el("h1"), about = el("div", { class: "about" });
const lines = linesOf(raw);
const own = new Console(lines, "Log of the build");
let view = own; // or the comparison

// --- the tools above the log
const follow = el("input", { type: "checkbox", checked: true, onchange: () => { view.follow = follow.checked; if (follow.checked) view.end(); } });
const narrow = matchMedia("(max-width: 45rem)").matches;
const times = el("input", { type: "checkbox", checked: !narrow, onchange: () => { view.times = times.checked; view.grew(); } });
const search = el("input", { type: "search", placeholder: "Find in log", "aria-label": "Find in log", oninput: () => view.search(search.value), onkeydown: (e) => e.key === "Enter" && view.step(e.shiftKey ? -1 : 1) });
const hits = el("span", { class: "small", role: "status" });
const why = el("p", { class: "why", hidden: true }), steps = el("details", { class: "steps", hidden: true }), listed = el("ol", { class: "plain" });
const all = el("button", { type: "button", onclick: () => { const shut = all.textContent === "Fold all"; all.textContent = shut ? "Unfold all" : "Fold all"; view.fold(shown.steps.map((one) => one.line), shut); } }, "Fold all");
steps.append(el("summary", {}, "Steps"), listed);
let shown = /** @type {{ steps: { line: number }[] }} */ (lines); // the rows that the view shows
function wire(made) {
  made.times = times.checked;
  made.onscroll = () => { follow.checked = view.follow; };
  made.onhits = found;
  return made;
}
function found(going) { hits.textContent = view.hits.length ? `${view.here + 1} of ${view.full ? "more than " : ""}${view.hits.length}${going ? "…" : ""}` : !search.value ? "" : going ? "searching…" : "not found"; }
wire(own);
const versus = el("button", { type: "button", hidden: true, "aria-pressed": "false", onclick: () => against() }, "Compare with the last success");
const next = el("button", { type: "button", hidden: true, title: "Next difference ( n )", onclick: () => differ(1) }, "Next difference");
const verdict = el("p", { class: "note", role: "status", hidden: true });
const tools = el("div", { class: "tools" }, el("label", {}, follow, " Follow"), el("label", {}, times, " Times"), search, el("button", { type: "button", onclick: () => view.step(-1), "aria-label": "Previous match" }, "↑"), el("button", { type: "button", onclick: () => view.step(1), "aria-label": "Next match" }, "↓"), hits, all, versus, next, el("a", { href: raw, class: "right" }, "Raw log"));
main.append(title, why, about, steps, tools, verdict, own.log);
document.addEventListener("keydown", (event) => {
  if (!(event.target instanceof Element) || event.target.matches("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "f" && lines.failure >= 0) jump(lines.failure);
  else if (event.key === "n" || event.key === "N") differ(event.key === "n" ? 1 : -1);
});

also(["f", "Go to the first failure"], ["n", "Next difference from the last success"], ["N", "Previous difference"]);
function jump(line) {
  if (view !== own) turn(own, lines);
  view.follow = follow.checked = false;
  view.go(line);
  view.mark(line);
}

// --- comparison with the last success
let earlier = Promise.resolve(), last = null, both = null, at = -1; // pending search for `last`; the build to compare with; the comparison, once made; the index of the current difference
function turn(to, rows) {
  const compares = to !== own;
  view.log.replaceWith(to.log);
  [view, shown, all.textContent] = [to, rows, compares ? "Unfold all" : "Fold all"];
  versus.setAttribute("aria-pressed", String(compares));
  next.hidden = !compares || !both?.rows.differing.length;
  verdict.hidden = !compares;
  follow.checked = view.follow = false;
  view.times = times.checked;
  view.grew();
  if (search.value !== view.words) view.search(search.value); else found(false);
  const query = new URLSearchParams(location.search);
  if (compares) query.set("against", last.uuid); else query.delete("against");
  history.replaceState(null, "", `${query.size ? `?${query}` : location.pathname}${compares ? "" : location.hash}`);
}

async function against() {
  if (view !== own) return turn(own, lines);
  if (!both) {
    versus.disabled = true;
    verdict.hidden = false;
    verdict.className = "note";
    try {
      const { rows, parts, notes } = await compare(lines, { there: logOf(last.uuid), here: raw }, (text) => { verdict.textContent = text; });
      const made = wire(new Console(rows, "Log of the build, compared with the last success"));
      [made.there, made.online] = [`/t/${encodeURIComponent(tenant)}/build/${encodeURIComponent(last.uuid)}`, jump];
      made.fold(rows.same, true);
      both = { rows, view: made };
      verdict.replaceChildren(parts ? `${parts.toLocaleString()} ${parts === 1 ? "part differs" : "parts differ"} from ` : "The log is the same as that of ", link("build", last.uuid, `the success of ${last.ref.change || last.ref.branch || last.ref.ref}`), ", ", when(last.end_time), `. The comparison ignores what differs every time: times, ids, addresses, temporary files. ${notes.join(" ")}`);
    } catch (error) {
      verdict.className = "note bad";
      verdict.textContent = error.message;
      return;
    } finally { versus.disabled = false; }
  }
  turn(both.view, both.rows);
  at = -1;
  differ(1);
}

function differ(by) {
  const rows = both?.rows.differing ?? [];
  if (view === own || !rows.length) return;
  at = at < 0 && by < 0 ? rows.length - 1 : (at + by + rows.length) % rows.length;
  view.go(rows[at]);
  view.mark(rows[at]);
}

// Offer the comparison once the build to compare with is known and the log is complete.
async function comparable(read) {
  await earlier;
  if (!read || !last?.log_url) return;
  versus.hidden = false;
  if (new URLSearchParams(location.search).has("against")) against();
}

const STEPS_MAX = 500, CASES_SHOWN = 100;
let outlined = 0, soon = 0, final = false;
function add(data) {
  lines.feed(data);
  own.grew();
  if (search.value && view === own) view.searched();
  if (lines.failure >= 0 && why.hidden) first();
  // The outline is drawn at most five times a second, however fast the log comes.
  if (outlined !== lines.steps.length && !soon) soon = setTimeout(outline, 200);
}

function outline() {
  clearTimeout(soon);
  [outlined, soon, steps.hidden] = [lines.steps.length, 0, lines.steps.length < 2];
  const few = lines.steps.length <= STEPS_MAX ? lines.steps : lines.steps.filter((one) => one.failed || one.level < 2).slice(0, STEPS_MAX);
  listed.replaceChildren(...few.map((one) => el("li", { class: `step${one.level}` }, el("a", { href: `#L${one.line + 1}`, class: one.failed ? "result bad" : "", onclick: (event) => { event.preventDefault(); jump(one.line); } }, one.failed ? `✘ ${one.name}` : one.name))));
}

function first() {
  outline();
  const line = lines.failure, text = plain(lines.at(line) ?? "");
  why.hidden = false;
  why.replaceChildren("First failure: ", el("a", { href: `#L${line + 1}`, onclick: (event) => { event.preventDefault(); jump(line); } }, `line ${line + 1}`), " ", el("code", {}, text.slice(stamp(text))));
}

// --- the facts about the build
let clock = 0;
const acts = el("div", { class: "acts" });
function offer(b) {
  const stop = { permission: "dequeue", label: "Cancel", title: `Cancel ${b.job_name}?`, verb: "Cancel the build", what: "The job counts as failed. If the pipeline lands changes, the changes behind this one are tested again without it.", send: (body) => post(`build/${encodeURIComponent(uuid)}/cancel`, body) };
  const keep = { permission: "autohold", label: "Hold", title: `Hold ${b.job_name} when it fails?`, verb: "Hold", why: true, what: `Work directories and machines of the next failing builds of this job of ${short(b.ref.project)} are held. Nothing is tested again.`,
    fields: [{ name: "count", label: "How many builds", type: "number", value: 1, required: true }], send: ({ count, reason }) => post(project({ project: short(b.ref.project) }, "autohold"), { job: b.job_name, count, reason }) };
  const anew = { permission: "enqueue", label: "Run again", title: `Run ${b.job_name} again?`, verb: "Run it again", what: "This job and the jobs that depend on it run once more on the same state. If the pipeline lands changes, the changes behind this one are tested again on top of it. This works only while the change is in its queue; afterwards, use Enqueue again on the page of its buildset.", send: (body) => post(`build/${encodeURIComponent(uuid)}/rerun`, body), done: () => location.assign(`/t/${encodeURIComponent(tenant)}/status`) };
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
  const tell = () => { lasted.textContent = b.duration ? took(b.duration * 1000) : start ? `${took(Date.now() - +start)}${b.estimated_time * 1000 > Date.now() - +start ? ` of about ${took(b.estimated_time * 1000)}` : ""}` : ""; };
  tell();
  if (!b.end_time && start) clock = setInterval(tell, 1000);
  const made = b.artifacts.filter((a) => a.metadata?.type !== "zuul_manifest");
  const known = about.querySelector("details.facts"), open = known instanceof HTMLDetailsElement ? known.open : !narrow;
  const gist = [short(b.ref.project), String(change), b.ref.branch, b.pipeline, b.duration ? took(b.duration * 1000) : ""].filter(Boolean).join(" · ");
  about.replaceChildren(el("details", { class: "facts", open }, el("summary", {}, gist), facts([
    ["Project", link("project", b.ref.project, short(b.ref.project))], ["Change", b.ref.ref_url ? outside(b.ref.ref_url, change) : change], ["Branch", b.ref.branch], ...people(b.ref),
    ["Pipeline", link("status", b.pipeline, b.pipeline)], ["Began", when(b.start_time)], ["Took", lasted.textContent ? lasted : ""], ["Voting", b.voting ? "" : "no: its result does not count"],
    ["Nodes", b.nodeset], ["Image", b.image], ["Error", b.error_detail], ["Held", b.held ? el("a", { href: `/t/${encodeURIComponent(tenant)}/autoholds` }, "yes: its work directory and machines are held") : ""], ["Attempt", b.attempt > 1 || !b.final && final ? `${b.attempt}${b.final || !final ? "" : ": it does not count, as another attempt or another buildset replaced it"}` : ""], ["Report", final ? link("buildset", b.buildset.uuid, "of the buildset") : ""],
    ["Build", [el("code", {}, uuid), " ", copy(uuid, "the id of the build")]],
    ["Artifacts", made.length ? el("ul", { class: "plain" }, made.map((a) => el("li", {}, outside(a.url, a.name), preview(a, uuid)))) : ""],
    ["Logs", b.log_url ? outside(b.log_url, "all files") : ""], ["Missing logs", b.log_missing],
  ])));
  about.append(acts);
  offer(b);
  if (b.result && b.result !== "SUCCESS") earlier = before(b);
  return b;
}

// Find the build to compare a failure with: the one that the address names, or the last success of the same job, project
// and branch before this build, or else the latest one.
async function before(b) {
  if (about.querySelector(".before")) return;
  const chosen = new URLSearchParams(location.search).get("against") ?? "";
  const query = new URLSearchParams({ job_name: b.job_name, project: b.ref.project, result: "SUCCESS", complete: "true", limit: "1" });
  if (b.ref.branch) query.set("branch", b.ref.branch);
  const one = (found) => fetched(`${api}/${found}`).catch(() => null);
  // Anybody may have written the address: only what looks like the id of a build may become part of a request.
  last = /^\w{8,64}$/.test(chosen) ? await one(`build/${chosen}`) : null;
  last ??= (await one(`builds?${query}&idx_max=${b._id - 1}`))?.[0] ?? (await one(`builds?${query}`))?.[0] ?? null;
  if (last && !about.querySelector(".before")) about.querySelector("dl").append(el("dt", { class: "before" }, "Last passed"), el("dd", {}, link("build", last.uuid, last.ref.change || last.ref.ref || last.ref.branch), " ", when(last.end_time), last.duration ? ` in ${took(last.duration * 1000)}` : ""));
}

async function files() {
  const found = await fetched(`${api}/build/${encodeURIComponent(uuid)}/logs`).catch(() => []);
  const others = found.filter((file) => file.path !== "job-output.txt");
  if (others.length && !about.querySelector(".files")) about.append(el("details", { class: "files" }, el("summary", {}, `${others.length} more log ${others.length === 1 ? "file" : "files"}`),
    el("ul", { class: "plain" }, others.map((file) => el("li", {}, el("a", { href: file.url }, file.path), el("span", { class: "small" }, ` ${file.size_bytes.toLocaleString()} bytes`))))));
}

// Show test results, if the build has any.
async function tests() {
  const found = await fetched(`${api}/build/${encodeURIComponent(uuid)}/tests`).catch(() => null);
  if (!found || !(found.files.length || found.problems.length) || about.querySelector(".tests")) return;
  const total = found.passed + found.failed + found.errors + found.skipped, bad = found.failed + found.errors;
  const LOOK = { passed: "good", skipped: "mute" };
  const row = (one) => [el("span", { class: `result ${LOOK[one.status] ?? "bad"}` }, one.status), [one.name, el("span", { class: "small under" }, one.suite)], one.seconds === null ? "" : `${one.seconds.toFixed(2)} s`, one.message ? el("pre", { tabindex: 0 }, one.message) : ""];
  const summary = [`${total.toLocaleString()} tests`, bad ? `${bad.toLocaleString()} failed` : "", found.skipped ? `${found.skipped.toLocaleString()} skipped` : "", took(found.seconds * 1000)].filter(Boolean).join(" · ");
  about.append(el("details", { class: "tests", open: bad > 0 }, el("summary", {}, summary), ...found.problems.map((text) => el("p", { class: "note bad" }, text)),
    el("div", { class: "cases" }, table(["Result", "Test", "Took", "Message"], found.cases.slice(0, CASES_SHOWN).map(row), "No test was reported.")), found.cases.length > CASES_SHOWN || total > found.cases.length ? el("p", { class: "small" }, "Failed tests come first, then skipped ones, then the slowest. The files have the others.") : ""));
}

// Show comments on lines of files.
async function comments() {
  const comments = await fetched(`${api}/file-comments?build=${encodeURIComponent(uuid)}`).catch(() => []);
  if (!comments.length || about.querySelector(".comments")) return;
  const place = (one) => el("code", {}, one.path, one.line ? `:${one.line}` : "");
  about.append(el("details", { class: "comments", open: comments.some((one) => one.level === "error") || comments.length <= 5 }, el("summary", {}, `${comments.length.toLocaleString()} ${comments.length === 1 ? "comment" : "comments"} on files`),
    el("div", { class: "cases" }, table(["Where", "Comment"], comments.map((one) => [place(one), remarked(one, false)]), "There are no comments."))));
}

// --- the log: first what exists, then what is appended, resumed where the connection broke
async function read() {
  const answer = await fetchLog(raw);
  if (!answer.ok) return false;
  const parts = answer.body.getReader();
  for (let part = await parts.read(); !part.done; part = await parts.read()) add(part.value);
  return true;
}

const bytes = new TextEncoder();
// One connection, which ends with the log; if it breaks, the next one resumes at the same byte.
const stream = () => keep((signal, good) => new Promise((done, failed) => {
  const socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}${api}/console-stream`);
  signal.addEventListener("abort", () => socket.close());
  // Scripts cannot set headers of a websocket: token and CSRF token are sent in the first message.
  socket.onopen = async () => { alive(); socket.send(JSON.stringify({ uuid, logfile: "console.log", offset: lines.bytes, token: token(), csrf: (await login).csrf })); };
  socket.onmessage = (event) => { if (signal.aborted) return; good(); alive(); add(bytes.encode(event.data)); };
  socket.onclose = async (event) => {
    if (signal.aborted) return done(null);
    if (event.code === 1000) return done(await ended().then(() => null));
    // 4011 means that there is no log: retrying would not help. After anything else, retry.
    if (event.code !== 4011) return failed(new Error(event.reason || "the connection was lost"));
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
  await Promise.all([files(), tests(), comments()]);
  comparable(final);
}

// Scroll to the lines that the address names, or else to the first failure, or else to the end.
function begin() {
  const named = /^#L(\d+)(?:-(\d+))?$/.exec(location.hash);
  if (named) {
    jump(Number(named[1]) - 1);
    view.mark(Number(named[1]) - 1, Number(named[2] ?? named[1]) - 1);
  } else if (lines.failure >= 0) jump(lines.failure);
}

try {
  await summary();
  await Promise.all([files(), final ? tests() : null, final ? comments() : null]);
  const there = await read();
  begin();
  comparable(there && final);
  if (!final) stream();
  else if (!there) { view.log.textContent = "The log is not available (any more)."; tools.remove(); }
  else over();
} catch (error) {
  tools.remove();
  view.log.remove();
  showError(error);
}
