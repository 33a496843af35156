import { address, api, el, link, look, main, nav, subject, tenant, took, showError } from "./page.js";
import { alive, ago, listen, now, setClock } from "./live.js";
import { button, named, post, project } from "./acts.js";
import { ended, itemLeft, rails, resting } from "./queue.js";

nav("status", tenant);
const MANY = 30; // with more items, they are shown folded
const query = new URLSearchParams(location.search);
const KINDS = [["", "All items"], ["failing", "Failing"], ["running", "Running"], ["passed", "Passed"], ["waiting", "Waiting"]];
const filter = el("input", { type: "search", placeholder: "Filter by project, change, branch  ( / )", "aria-label": "Filter items", value: query.get("q") ?? "", oninput: () => { remember(); draw(); } });
const kinds = el("select", { "aria-label": "Which items", onchange: () => { remember(); draw(); } }, KINDS.map(([name, label]) => el("option", { value: name, selected: name === query.get("show") }, label)));
const count = el("span", { class: "small", role: "status" });
const all = el("button", { type: "button", onclick: () => { open = !wide(); toggled.clear(); remember(); draw(); } }, "Fold all");
const pipelines = el("div", { class: "pipelines" }), quiets = el("div", { class: "quiets" }), problems = el("div", { class: "reasons", role: "alert" });
main.append(el("div", { class: "tools" }, el("h1", { class: "hidden" }, `Queues of ${tenant}`), filter, kinds, all, count, enqueue(), reread()), problems, pipelines, quiets);

let status = null, items = new Map(), open = query.has("open") ? query.get("open") !== "0" : null, order = { busy: "", names: "", ranks: new Map() };
const toggled = new Set();
const running = new Map(); // node of a job -> job
const clocks = new Map(); // node of an item's times -> item

const wide = () => open ?? items.size <= MANY;
function remember() {
  const params = new URLSearchParams(Object.entries({ q: filter.value, show: kinds.value, open: open === null ? "" : String(Number(open)) }).filter(([, value]) => value));
  history.replaceState(null, "", params.size ? `?${params}` : location.pathname);
}

// Keyed update: nodes are moved and changed in place, so that nothing flickers and the focus stays.
function sync(parent, wanted) {
  const known = new Map([...parent.children].map((node) => [node.dataset.key, node]));
  wanted.forEach(([key, make, fill, value], index) => {
    let node = known.get(key);
    known.delete(key);
    if (!node) { node = make(); node.dataset.key = key; }
    if (parent.children[index] !== node) parent.insertBefore(node, parent.children[index] ?? null);
    // Compared by identity: `shownAs` returns the same object as long as nothing has changed.
    if (node.shown !== value) { node.shown = value; fill(node, value); }
  });
  for (const node of known.values()) node.remove();
}

const set = (node, text) => { if (node.textContent !== text) node.textContent = text; };
const as = (node, name) => { if (node.className !== name) node.className = name; };

const makeJob = () => el("li", { class: "job" }, el("span", { class: "name" }), el("span", { class: "bar", "aria-hidden": "true" }, el("i")), el("span", { class: "result" }), el("span", { class: "small awaits" }));

function fillJob(node, job) {
  const [name, bar, result, why] = node.children;
  as(node, job.voting ? "job" : "job free");
  const key = `${job.uuid}${job.running || job.paused || job.result}`;
  if (name.dataset.key !== key) {
    name.dataset.key = key;
    name.replaceChildren(job.uuid && (job.running || job.paused || job.result) ? link("build", job.uuid, job.name) : job.name, ...(job.voting ? [] : [el("span", { class: "small" }, " non-voting")]));
  }
  const paused = job.paused && !job.result, kind = job.result ? look(job.result) : job.pre_fail ? look("FAILURE") : job.running || paused ? "busy" : "mute";
  as(bar, `bar ${job.result ? `done ${kind}` : job.running ? (job.estimated_time ? "known" : "running") : ""}`);
  if (!job.running) bar.firstChild.style.transform = "";
  as(result, `result ${kind}`);
  result.title = job.error || job.waiting_status || "";
  set(why, job.result ? job.error : job.waiting_status ? `waits for ${job.waiting_status}` : job.paused ? "paused: the jobs that depend on it run" : "");
  if (job.running) running.set(node, job); else running.delete(node);
  if (job.running) tick(node, job);
  else set(result, job.result ? job.result : paused ? "paused" : job.retry ? `attempt ${job.tries}` : job.uuid ? "queued" : "waiting");
}

// Update what changes with time.
function tick(node, job) {
  const [, bar, result] = node.children;
  const elapsed = job.start_time ? now() - job.start_time * 1000 : null, estimate = job.estimated_time ? job.estimated_time * 1000 : null;
  if (estimate && elapsed !== null) bar.firstChild.style.transform = `scaleX(${Math.min(.97, Math.max(.03, elapsed / estimate)).toFixed(3)})`; // a transform needs no layout
  if (job.pre_fail) return set(result, "failing");
  set(result, elapsed === null ? "running" : estimate > elapsed ? `${took(elapsed)} of ~${took(estimate)}` : `running ${took(elapsed)}`);
}

const makeDot = () => el("i");
function fillDot(dot, job) {
  as(dot, `${job.result ? look(job.result) : job.running ? "busy" : "idle"}${job.voting ? "" : " free"}`);
  dot.title = `${job.name}${job.voting ? "" : ", non-voting"}: ${job.result ?? (job.running ? "running" : "waiting")}`;
}

function makeItem() {
  const button = el("button", { type: "button", class: "toggle", onclick: () => { const id = node.dataset.key; toggled.has(id) ? toggled.delete(id) : toggled.add(id); draw(); } },
    el("span", { class: "subject" }), el("span", { class: "small" }), el("span", { class: "dots" }), el("span", { class: "small clock" }));
  const node = el("article", { class: "item" }, el("div", { class: "rail", "aria-hidden": "true" }),
    el("div", { class: "box" }, button, el("p", { class: "small people" }), el("div", { class: "reasons" }), el("ul", { class: "jobs" }), el("div", { class: "acts" })));
  return node;
}

// The lines between an item and those on top of it, in the gutter of one item.
function fillRail(node, rail) {
  const line = (name, left, width) => {
    const one = el("i", { class: name });
    one.style.left = `${left * 12 + 5}px`;
    if (width) one.style.width = `${width * 12}px`;
    return one;
  };
  node.style.width = rail ? `${rail.width * 12}px` : "0";
  node.replaceChildren(...(rail ? [...rail.through.map((column) => line("through", column)), rail.up ? line("up", rail.column) : "", rail.down ? line("down", rail.column) : "",
    ...rail.out.flatMap((column) => [line("side", Math.min(rail.column, column), Math.abs(column - rail.column)), line("drop", column)]), line("knot", rail.column)].filter(Boolean) : []));
}

function counts(jobs) {
  const ended = jobs.filter((job) => job.result), bad = ended.filter((job) => look(job.result) === "bad");
  return { done: ended.length, bad: bad.filter((job) => job.voting).length, free: bad.filter((job) => !job.voting).length };
}
const kindOf = (item) => (item.failing_reasons.length ? "failing" : !item.active ? "waiting" : item.jobs.length && item.jobs.every((job) => job.result) ? "good" : "busy");
const refName = (ref) => ref.id || ref.ref;

function fillItem(node, shownNow) {
  const { item, shown, apart, behind, rail, gated } = shownNow;
  const ref = item.refs[0], [gutter, box] = node.children, [toggle, people, reasons, jobs, acts] = box.children, [subject, small, dots, clock] = toggle.children;
  const { done, bad, free } = counts(item.jobs);
  as(node, `item ${kindOf(item)}${item.item_ahead ? " behind" : ""}${item.live ? "" : " waiting"}`);
  fillRail(gutter, rail);
  toggle.setAttribute("aria-expanded", String(shown));
  toggle.title = `${ref.project_canonical} ${ref.ref}`;
  set(subject, ref.subject || ref.ref);
  set(small, `${ref.project} · ${refName(ref)} · ${ref.branch}${item.refs.length > 1 ? ` · together with ${item.refs.slice(1).map(refName).join(", ")}` : ""}${item.live ? "" : " · needed by the change below"}${item.phase ? ` · ${item.phase}` : ""}${apart ? " · tested without the failing change above" : ""}`);
  dots.hidden = !item.jobs.length; // an empty picture needs no label
  dots.setAttribute("aria-label", `${done} of ${item.jobs.length} jobs done${bad ? `, ${bad} failed` : ""}${free ? `, ${free} non-voting failed` : ""}`);
  dots.setAttribute("role", "img");
  sync(dots, item.jobs.map((job) => [job.name, makeDot, fillDot, job]));
  clocks.set(clock, shownNow);
  tell(clock, shownNow);
  const roles = [["by", [ref.owner.replace(/\s*<.*/, "")]], ["proposed by", ref.proposers], ["approved by", ref.approvers]].filter(([, names]) => names.join(""));
  const ahead = items.get(item.item_ahead)?.refs[0];
  const rests = gated && item.live ? `${ahead ? `Tested on top of ${refName(ahead)} of ${ahead.project}. ` : ""}${behind ? `If it fails, ${behind === 1 ? "1 change behind it is" : `${behind} changes behind it are`} tested again.` : ""}` : "";
  people.replaceChildren(...(shown ? [roles.map(([what, names]) => `${what} ${names.join(", ")}`).join(" · "), ...(ref.change ? [" ", el("a", { href: address(ref) }, "When will it land?")] : []), ...(rests ? [el("span", { class: "under" }, rests)] : [])] : []));
  set(reasons, item.failing_reasons.length ? `Failing: ${item.failing_reasons.join(", ")}` : "");
  sync(jobs, shown ? item.jobs.map((job) => [job.name, makeJob, fillJob, job]) : []);
  if (item.jobs.length && shown) jobs.removeAttribute("hidden"); else jobs.setAttribute("hidden", "");
  if (!shown || !item.live) acts.replaceChildren();
  else if (!acts.firstChild) acts.append(...itemActs(item.id));
}

// How long the item has waited, how long it will, and how many are on top of it.
function tell(clock, { item, behind, line, gated }) {
  const left = itemLeft(item, line, now());
  const soon = () => (left > 60_000 ? `in about ${took(Math.ceil(left / 60_000) * 60_000).replace(/ 00s$/, "")}` : "within a minute");
  const ends = item.failing_reasons.length || !item.live ? "" : !item.active ? "waits for room in the window" : left === null ? "" : left ? `${gated ? "lands" : "ends"} ${soon()}` : ended(item, line) ? "all jobs have ended" : "takes longer than usual";
  set(clock, [`enqueued ${ago(now() - item.enqueue_time)}`, ends, behind && gated ? `${behind} on top of it` : ""].filter(Boolean).join(" · "));
}

// --- manual actions, on the state of the queues when the dialog is opened, not when the button was made
const place = (id) => status.pipelines.flatMap((p) => p.change_queues.map((q) => ({ p, q, ids: q.heads.flat() }))).find(({ ids }) => ids.includes(id));
const titleOf = (id) => { const ref = items.get(id)?.refs[0]; return ref ? `${ref.id || ref.ref} of ${ref.project}` : "it"; };
const after = (id) => resting(place(id)?.ids.map((other) => items.get(other)).filter(Boolean) ?? []).get(id) ?? 0;
const again = (n, how) => (n ? `${n === 1 ? "1 change behind it is" : `${n} changes behind it are`} tested again${how}.` : "Nothing else is tested again.");

function itemActs(id) {
  // Looked up when the dialog is confirmed, as the item may have moved or left while somebody typed the reason.
  const there = () => { if (!place(id)) throw new Error("The item has left the queue in the meantime."); return { pipeline: place(id).p.name, ref: items.get(id).refs[0] }; };
  const out = { permission: "dequeue", label: "Dequeue", title: () => `Dequeue ${titleOf(id)} from ${place(id)?.p.name ?? "its pipeline"}?`, verb: "Dequeue it",
    what: () => `Its builds are cancelled, and this is reported on the change. ${again(after(id), " without it")}`,
    send: ({ reason }) => { const { pipeline, ref } = there(); return post(project(ref, "dequeue"), { pipeline, ...named(ref), reason }); } };
  const first = { permission: "promote", label: "Promote", title: () => `Move ${titleOf(id)} to the head of its queue?`, verb: "Move it",
    what: () => { const ids = place(id)?.ids ?? []; return ids.length > 1 ? `It and the changes that are then behind it, up to ${ids.length} changes, are tested again on their new base.` : "It is the only item of its queue."; },
    send: ({ reason }) => { const { pipeline, ref } = there(); return post("promote", { pipeline, changes: [ref.id || ref.ref], reason }); } };
  return [button(out), button(first)];
}

function enqueue() {
  return button({ permission: "enqueue", label: "Enqueue…", title: "Enqueue a change into a pipeline", verb: "Enqueue", what: "All its jobs run in that pipeline. A pipeline that lands changes accepts only changes that meet its requirements. Nothing else is tested again.",
    fields: [{ name: "pipeline", label: "Pipeline", required: true }, { name: "project", label: "Project", required: true }, { name: "change", label: "Change, or a ref that begins with refs/", required: true }],
    send: ({ project: name, pipeline, change, reason }) => post(project({ project: name }, "enqueue"), { pipeline, ...(change.startsWith("refs/") ? { ref: change } : { change }), reason }) });
}

function reread() {
  return button({ permission: "*", label: "Reconfigure", title: `Read the configuration of ${tenant} again?`, what: "It is read from every project. Items in the queues are tested again if their jobs change.", send: (body) => post("reconfigure", body) });
}

function gate(name) {
  const shut = { permission: "set-tenant-state", label: "Close", title: `Close ${name}?`, why: true, what: "Nothing lands from it until somebody opens it. Changes are still tested; nothing is tested again.", send: ({ reason }) => post("close", { pipeline: name, reason }) };
  const open = { permission: "set-tenant-state", label: "Open", title: `Open ${name}?`, what: "Changes that have passed land, in the order of the queue. Nothing is tested again.", send: ({ reason }) => post("open", { pipeline: name, reason }) };
  return [el("span", { class: "shut" }, button({ ...shut, name: `Close ${name}` })), el("span", { class: "open" }, button({ ...open, name: `Open ${name}` }))];
}

const makeEdge = () => el("p", { class: "edge small" });
const makeQueue = () => el("section", { class: "queue" }, el("h3", { class: "name" }), el("div"));
const memory = new Map(); // item -> what was shown last; the same object as long as nothing has changed

function shownAs(item, above, facts) {
  const shown = wide() !== toggled.has(item.id), known = memory.get(item.id);
  const apart = Boolean(facts.gated && above && item.zuul_ref && above.failing_reasons.length && item.item_ahead !== above.id);
  const fresh = { item, shown, apart, ...facts, mark: JSON.stringify([facts.behind, facts.rail, facts.line.map((one) => one.id)]) };
  if (known && known.item === item && known.shown === shown && known.apart === apart && known.mark === fresh.mark && known.line.every((one, n) => one === facts.line[n])) return known;
  memory.set(item.id, fresh);
  return fresh;
}

function fillQueue(node, { queue, gated }) {
  const all = queue.all, place = new Map(all.map((item, n) => [item.id, n])), complete = queue.items.length === all.length;
  set(node.firstChild, gated ? `${queue.name} · ${queue.window ? `window ${queue.window}` : "no window: all items are tested in parallel"}${queue.closed ? ` · closed: ${queue.closed}` : ""}` : "");
  node.firstChild.hidden = !gated;
  const behind = resting(all), drawn = gated && complete && all.length > 1 ? rails(all) : new Map();
  const rows = queue.items.map((item) => {
    const n = place.get(item.id);
    const facts = { gated, behind: behind.get(item.id) ?? 0, rail: drawn.get(item.id) ?? null, line: gated && item.active ? all.slice(0, n) : [] };
    return [item.id, makeItem, fillItem, shownAs(item, all[n - 1], facts)];
  });
  const first = queue.items.findIndex((item) => !item.active), waits = queue.items.length - first;
  if (gated && queue.window && first > 0) rows.splice(first, 0, [" edge", makeEdge, (edge, text) => set(edge, text), `The window ends here: ${waits} ${waits === 1 ? "waits" : "wait"} until there is room.`]);
  sync(node.lastChild, rows);
}

const makePipeline = () => el("section", { class: "pipeline" }, el("div", { class: "head" }, el("h2"), el("span", { class: "small" }), el("a", { class: "small" }, "Statistics"), el("span", { class: "gate" })), el("p", { class: "reasons closed" }), el("p", { class: "small about" }), el("div"), el("div", { class: "empty" }));

// A short summary of running and waiting jobs.
function work(pipeline) {
  const jobs = pipeline.queues.flatMap((queue) => queue.all.flatMap((item) => item.jobs)).filter((job) => !job.result);
  const busy = jobs.filter((job) => job.running).length, machines = jobs.filter((job) => job.waiting_status?.startsWith("nodes:")).length;
  return [busy ? `${busy} ${busy === 1 ? "job runs" : "jobs run"}` : "", machines ? `${machines} ${machines === 1 ? "waits" : "wait"} for machines` : ""].filter(Boolean);
}

function fillPipeline(node, pipeline) {
  const [head, shut, about, queues, empty] = node.children;
  const total = pipeline.total, found = pipeline.queues.reduce((sum, queue) => sum + queue.items.length, 0);
  const events = pipeline.trigger_events + pipeline.result_events + pipeline.management_events;
  as(node, `pipeline${total ? "" : " quiet"}`);
  set(head.firstChild, pipeline.name);
  head.children[2].href = `/t/${encodeURIComponent(tenant)}/statistics?pipeline=${encodeURIComponent(pipeline.name)}`;
  head.children[2].ariaLabel = `Statistics of ${pipeline.name}`;
  if (pipeline.manager === "dependent") {
    if (!head.lastChild.firstChild) head.lastChild.append(...gate(pipeline.name));
    const closed = Boolean(pipeline.closed || pipeline.change_queues.some((queue) => queue.closed));
    head.lastChild.firstChild.hidden = Boolean(pipeline.closed);
    head.lastChild.lastChild.hidden = !closed;
  }
  const wrong = pipeline.state === "error" ? "its records cannot be read" : pipeline.state === "disabled" ? "disabled after too many failures: nothing lands" : "";
  const size = total ? `${found === total ? "" : `${found} of `}${total} ${total === 1 ? "item" : "items"}` : "empty";
  set(head.children[1], [pipeline.manager, size, ...work(pipeline), events ? `${events} ${events === 1 ? "event" : "events"} waiting` : "", wrong].filter(Boolean).join(" · "));
  set(shut, pipeline.closed ? `Closed, so nothing lands: ${pipeline.closed}` : "");
  set(about, pipeline.description);
  about.hidden = !pipeline.description || !total;
  const gated = pipeline.manager !== "independent";
  sync(queues, pipeline.queues.filter((queue) => queue.items.length).map((queue) => [queue.key, makeQueue, fillQueue, { queue, gated }]));
  set(empty, total && !found ? "Nothing matches the filter." : "");
  empty.hidden = Boolean(found || !total);
}

function fits(item) {
  const wanted = filter.value.trim().toLowerCase(), texts = item.refs.flatMap((ref) => [ref.project, ref.id, ref.subject, ref.branch, ref.owner]);
  const kind = { busy: "running", good: "passed" }[kindOf(item)] ?? kindOf(item);
  return (!kinds.value || kinds.value === kind) && (!wanted || texts.join(" ").toLowerCase().includes(wanted));
}

// What people have paused.
function pausedQueues(state) {
  const reasons = { trigger_queue_discarding: "events are discarded", trigger_queue_paused: "events are paused", result_queue_paused: "results are paused" };
  const found = Object.keys(reasons).filter((name) => state[name]).map((name) => reasons[name]);
  return found.length ? [{ project: tenant, text: [...found, state.reason].filter(Boolean).join("; ") }] : [];
}

function draw() {
  if (!status) return;
  const only = subject;
  let seen = 0;
  sync(problems, [...pausedQueues(status.state), ...(status.problems ?? [])].map((problem) => [problem.project, () => el("p"), (node) => set(node, `${problem.project}: ${problem.text}`), problem]));
  const found = status.pipelines.filter((pipeline) => !only || pipeline.name === only).map((pipeline) => {
    const gated = pipeline.manager !== "independent";
    const queues = pipeline.change_queues.map((queue, n) => {
      const of = queue.heads.flat().map((id) => items.get(id)).filter(Boolean);
      return { ...queue, key: gated ? `${queue.name}${n}` : of.at(-1)?.id ?? String(n), all: of, items: of.filter(fits) };
    });
    const total = queues.reduce((sum, queue) => sum + queue.all.length, 0);
    seen += queues.reduce((sum, queue) => sum + queue.items.length, 0);
    return { ...pipeline, total, queues };
  });
  const rows = inOrder(found).map((pipeline) => [pipeline.name, makePipeline, fillPipeline, pipeline]);
  sync(pipelines, rows.filter(([, , , pipeline]) => pipeline.total || only));
  sync(quiets, rows.filter(([, , , pipeline]) => !pipeline.total && !only));
  // Otherwise, nodes that left the page would stay in memory and be updated as long as the page is open.
  for (const node of clocks.keys()) if (!node.isConnected) clocks.delete(node);
  for (const node of running.keys()) if (!node.isConnected) running.delete(node);
  set(count, filter.value || kinds.value ? `${seen} of ${items.size} items` : !status.state.loaded ? "The configuration is being read…" : "");
  set(all, wide() ? "Fold all" : "Unfold all");
  all.hidden = !items.size;
  const failing = [...items.values()].filter((item) => item.failing_reasons.length).length;
  document.title = `${failing ? `✘ ${failing} failing · ` : ""}${items.size ? `${items.size} in the queues · ` : ""}${tenant} · Headgate`;
}

// Busy pipelines come first.  The order changes only when one becomes busy or empty, so that nothing moves while people
// read.
function inOrder(found) {
  const busy = found.filter((one) => one.total).map((one) => one.name).sort().join("\n"), names = found.map((one) => one.name).sort().join("\n");
  if (order.busy !== busy || order.names !== names) order = { busy, names, ranks: new Map([...found].sort((a, b) => b.total - a.total).map((one, n) => [one.name, n])) };
  return [...found].sort((a, b) => order.ranks.get(a.name) - order.ranks.get(b.name));
}

function heard(message) {
  status = message.status;
  setClock(message.now);
  // Events contain only items that have changed; the status lists the ids of all items in order.
  for (const [id, item] of Object.entries(message.items)) items.set(id, item);
  const there = new Set(status.pipelines.flatMap((p) => p.change_queues.flatMap((q) => q.heads.flat())));
  for (const id of items.keys()) if (!there.has(id)) { items.delete(id); memory.delete(id); toggled.delete(id); }
  alive(status.problems?.find((problem) => problem.project === "the store")?.since ?? 0);
  draw();
}

// Show a refusal, which retrying would not change.
function refused(/** @type {{ status?: number }} */ { status: code }) {
  pipelines.replaceChildren();
  quiets.replaceChildren();
  main.querySelector("p.bad")?.remove();
  showError(Object.assign(new Error(code === 401 ? `Log in to see tenant ${tenant}.` : code === 403 ? `You may not read tenant ${tenant}.` : `There is no tenant ${tenant}.`), { status: code }));
}

setInterval(() => {
  if (document.hidden) return;
  for (const [node, job] of running) tick(node, job);
  for (const [node, shown] of clocks) tell(node, shown);
}, 1000);
// A new connection begins with the full state, so earlier items are dropped.
listen(`${api}/events`, heard, () => { items = new Map(); }, refused);
