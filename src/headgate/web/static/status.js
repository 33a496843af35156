import { address, api, bearing, el, link, look, main, nav, state, subject, tenant, token, took, trouble } from "./page.js";
import { button, named, post, project } from "./acts.js";

nav("status", tenant);
const MANY = 30; // items; beyond that they are shown closed
const query = new URLSearchParams(location.search);
const filter = el("input", { type: "search", placeholder: "Filter by project, change, branch  ( / )", "aria-label": "Filter items", value: query.get("q") ?? "", oninput: () => { remember(); draw(); } });
const count = el("span", { class: "small", role: "status" });
const all = el("button", { type: "button", onclick: () => { open = !wide(); toggled.clear(); draw(); } }, "Fold all");
const pipelines = el("div", { class: "pipelines" }), troubles = el("div", { class: "reasons", role: "alert" });
main.append(el("div", { class: "tools" }, el("h1", { class: "hidden" }, `Queues of ${tenant}`), filter, all, count, enqueue(), reread()), troubles, pipelines);

let status = null, items = new Map(), skew = 0, open = null;
const toggled = new Set();
const running = new Map(); // node of a job -> job

const wide = () => open ?? items.size <= MANY;
const now = () => Date.now() + skew;
function remember() { history.replaceState(null, "", filter.value ? `?q=${encodeURIComponent(filter.value)}` : location.pathname); }

// Keyed update: nodes are kept, moved and changed in place, so that nothing flickers and focus stays.
function sync(parent, wanted) {
  const known = new Map([...parent.children].map((node) => [node.dataset.key, node]));
  wanted.forEach(([key, make, fill, value], index) => {
    let node = known.get(key);
    known.delete(key);
    if (!node) { node = make(); node.dataset.key = key; }
    if (parent.children[index] !== node) parent.insertBefore(node, parent.children[index] ?? null);
    if (node.shown !== value) { node.shown = value; fill(node, value); }
  });
  for (const node of known.values()) node.remove();
}

const set = (node, text) => { if (node.textContent !== text) node.textContent = text; };
const as = (node, name) => { if (node.className !== name) node.className = name; };

const makeJob = () => el("li", { class: "job" }, el("span", { class: "name" }), el("span", { class: "bar", "aria-hidden": "true" }, el("i")), el("span", { class: "result" }));

function fillJob(node, job) {
  const [name, bar, result] = node.children;
  const key = `${job.uuid}${job.running || job.result}`;
  if (name.dataset.key !== key) {
    name.dataset.key = key;
    name.replaceChildren(job.uuid && (job.running || job.result) ? link("build", job.uuid, job.name) : job.name, ...(job.voting ? [] : [el("span", { class: "small" }, " non-voting")]));
  }
  const kind = job.result ? look(job.result) : job.pre_fail ? look("FAILURE") : job.running ? "busy" : "mute";
  as(bar, `bar ${job.result ? `done ${kind}` : job.running ? (job.estimated_time ? "known" : "running") : ""}`);
  if (!job.running) bar.firstChild.style.width = "";
  as(result, `result ${kind}`);
  result.title = job.error || job.waiting_status || "";
  if (job.running) running.set(node, job); else running.delete(node);
  if (job.running) tick(node, job);
  else set(result, job.result ? job.result : job.retry ? `again, try ${job.tries}` : job.uuid ? "queued" : "waiting");
}

// What time alone changes.
function tick(node, job) {
  const [, bar, result] = node.children;
  const elapsed = job.start_time ? now() - job.start_time * 1000 : null, whole = job.estimated_time ? job.estimated_time * 1000 : null;
  if (whole && elapsed !== null) bar.firstChild.style.width = `${Math.min(97, Math.max(3, (elapsed / whole) * 100))}%`;
  if (job.pre_fail) return set(result, "failing");
  set(result, elapsed === null ? "running" : whole > elapsed ? `${took(elapsed)} of ~${took(whole)}` : `running ${took(elapsed)}`);
}

function makeItem() {
  const button = el("button", { type: "button", class: "toggle", onclick: () => { const id = node.dataset.key; toggled.has(id) ? toggled.delete(id) : toggled.add(id); draw(); } },
    el("span", { class: "subject" }), el("span", { class: "small" }), el("span", { class: "dots" }));
  const node = el("article", { class: "item" }, button, el("p", { class: "small people" }), el("div", { class: "reasons" }), el("ul", { class: "jobs" }), el("div", { class: "acts" }));
  return node;
}

function fillItem(node, { item, shown, apart }) {
  const ref = item.refs[0], [toggle, people, reasons, jobs, acts] = node.children, [subject, small, dots] = toggle.children;
  const done = item.jobs.filter((job) => job.result).length, bad = item.jobs.filter((job) => job.result && look(job.result) === "bad").length;
  const kind = item.failing_reasons.length ? "failing" : !item.active ? "waiting" : item.jobs.length && done === item.jobs.length ? "good" : "busy";
  as(node, `item ${kind}${item.item_ahead ? " behind" : ""}${item.live ? "" : " waiting"}`);
  toggle.setAttribute("aria-expanded", String(shown));
  toggle.title = `${ref.project_canonical} ${ref.ref}`;
  set(subject, ref.subject || ref.ref);
  set(small, `${ref.project} · ${ref.id || ref.ref} · ${ref.branch}${item.refs.length > 1 ? ` · as one with ${item.refs.slice(1).map((r) => r.id || r.ref).join(", ")}` : ""}${item.live ? "" : " · needed by the change below"}${item.phase ? ` · ${item.phase}` : ""}${apart ? " · tested without what fails above" : ""}`);
  dots.setAttribute("aria-label", item.jobs.length ? `${done} of ${item.jobs.length} jobs done${bad ? `, ${bad} failed` : ""}` : "");
  dots.setAttribute("role", "img");
  sync(dots, item.jobs.map((job) => [job.name, () => el("i"), (dot, j) => { as(dot, j.result ? look(j.result) : j.running ? "busy" : "idle"); dot.title = `${j.name}: ${j.result ?? (j.running ? "running" : "waiting")}`; }, job]));
  const said = [["by", [ref.owner.replace(/\s*<.*/, "")]], ["proposed by", ref.proposers], ["approved by", ref.approvers]].filter(([, names]) => names.join(""));
  people.replaceChildren(...(shown ? [said.map(([what, names]) => `${what} ${names.join(", ")}`).join(" · "), ...(ref.change ? [" ", el("a", { href: address(ref) }, "When will it land?")] : [])] : []));
  set(reasons, item.failing_reasons.length ? `Fails because ${item.failing_reasons.join(", ")}` : "");
  sync(jobs, shown ? item.jobs.map((job) => [job.name, makeJob, fillJob, job]) : []);
  if (item.jobs.length && shown) jobs.removeAttribute("hidden"); else jobs.setAttribute("hidden", "");
  if (!shown || !item.live) acts.replaceChildren();
  else if (!acts.firstChild) acts.append(...itemActs(item.id));
}

// --- what people do by hand: with what is in the queues when they are asked, not when the button was made
const place = (id) => status.pipelines.flatMap((p) => p.change_queues.map((q) => ({ p, q, ids: q.heads.flat() }))).find(({ ids }) => ids.includes(id));
const said = (id) => { const ref = items.get(id)?.refs[0]; return ref ? `${ref.id || ref.ref} of ${ref.project}` : "it"; };
function after(id) {  // what rests on it
  const found = new Set([id]);
  for (const other of place(id)?.ids ?? []) if (found.has(items.get(other)?.item_ahead)) found.add(other);
  return found.size - 1;
}
const anew = (n, how) => (n ? `${n === 1 ? "1 change behind it is" : `${n} changes behind it are`} tested anew${how}.` : "Nothing else is tested anew.");

function itemActs(id) {
  const there = () => { if (!place(id)) throw new Error("It has left the queue meanwhile."); return { pipeline: place(id).p.name, ref: items.get(id).refs[0] }; };
  const out = { permission: "dequeue", label: "Dequeue", title: () => `Take ${said(id)} out of ${place(id)?.p.name ?? "its pipeline"}?`, verb: "Take it out",
    what: () => `Its builds are stopped, and it is told so. ${anew(after(id), " without it")}`,
    send: ({ reason }) => { const { pipeline, ref } = there(); return post(project(ref, "dequeue"), { pipeline, ...named(ref), reason }); } };
  const first = { permission: "promote", label: "Promote", title: () => `Move ${said(id)} to the head of its queue?`, verb: "Move it",
    what: () => { const ids = place(id)?.ids ?? []; return ids.length > 1 ? `It and what comes behind it, up to ${ids.length} changes, are tested anew on what is then ahead.` : "It is alone in its queue."; },
    send: ({ reason }) => { const { pipeline, ref } = there(); return post("promote", { pipeline, changes: [ref.id || ref.ref], reason }); } };
  return [button(out), button(first)];
}

function enqueue() {
  return button({ permission: "enqueue", label: "Enqueue…", title: "Put a change into a pipeline", verb: "Enqueue", what: "All its jobs are run in that pipeline. One that lands takes what meets its requirements. Nothing else is tested anew.",
    fields: [{ name: "pipeline", label: "Pipeline", required: true }, { name: "project", label: "Project", required: true }, { name: "change", label: "Change, or a ref that begins with refs/", required: true }],
    send: ({ project: name, pipeline, change, reason }) => post(project({ project: name }, "enqueue"), { pipeline, ...(change.startsWith("refs/") ? { ref: change } : { change }), reason }) });
}

function reread() {
  return button({ permission: "*", label: "Reconfigure", title: `Read the configuration of ${tenant} anew?`, what: "It is read from every project. What is in the queues is tested anew where its jobs are then others.", send: (body) => post("reconfigure", body) });
}

function gate(name) {
  const shut = { permission: "set-tenant-state", label: "Close", title: `Close ${name}?`, why: true, what: "Nothing lands from it until somebody opens it. Changes are tested as ever; nothing is tested anew.", send: ({ reason }) => post("close", { pipeline: name, reason }) };
  const open = { permission: "set-tenant-state", label: "Open", title: `Open ${name}?`, what: "What has passed lands, in the order of the queue. Nothing is tested anew.", send: ({ reason }) => post("open", { pipeline: name, reason }) };
  return [el("span", { class: "shut" }, button({ ...shut, name: `Close ${name}` })), el("span", { class: "open" }, button({ ...open, name: `Open ${name}` }))];
}

const makeQueue = () => el("section", { class: "queue" }, el("h3", { class: "name" }), el("div"));
const memory = new Map(); // item -> what it was shown as; the same object while nothing is different

function shownAs(item, above) {
  const shown = wide() !== toggled.has(item.id), known = memory.get(item.id);
  const apart = Boolean(above && item.zuul_ref && above.failing_reasons.length && item.item_ahead !== above.id);
  if (known && known.item === item && known.shown === shown && known.apart === apart) return known;
  const fresh = { item, shown, apart };
  memory.set(item.id, fresh);
  return fresh;
}

function fillQueue(node, queue) {
  set(node.firstChild, queue.window ? `${queue.name} · window ${queue.window}${queue.closed ? ` · nothing lands: ${queue.closed}` : ""}` : "");
  node.firstChild.hidden = !queue.window;
  sync(node.lastChild, queue.items.map((item, n) => [item.id, makeItem, fillItem, shownAs(item, queue.window ? queue.items[n - 1] : null)]));
}

const makePipeline = () => el("section", { class: "pipeline" }, el("div", { class: "head" }, el("h2"), el("span", { class: "small" }), el("span", { class: "gate" })), el("p", { class: "reasons closed" }), el("p", { class: "small about" }), el("div"), el("div", { class: "empty" }));

function fillPipeline(node, pipeline) {
  const [head, shut, about, queues, empty] = node.children;
  const total = pipeline.total, found = pipeline.queues.reduce((sum, queue) => sum + queue.items.length, 0);
  const events = pipeline.trigger_events + pipeline.result_events + pipeline.management_events;
  set(head.firstChild, pipeline.name);
  if (pipeline.manager === "dependent") {
    if (!head.lastChild.firstChild) head.lastChild.append(...gate(pipeline.name));
    const closed = Boolean(pipeline.closed || pipeline.change_queues.some((queue) => queue.closed));
    head.lastChild.firstChild.hidden = Boolean(pipeline.closed);
    head.lastChild.lastChild.hidden = !closed;
  }
  set(head.children[1], `${pipeline.manager} · ${found === total ? "" : `${found} of `}${total} ${total === 1 ? "item" : "items"}${events ? ` · ${events} ${events === 1 ? "event" : "events"} waiting` : ""}${pipeline.state === "error" ? " · its records cannot be read" : pipeline.state === "disabled" ? " · disabled after too many failures: nothing lands" : ""}`);
  set(shut, pipeline.closed ? `Nothing lands: ${pipeline.closed}` : "");
  set(about, pipeline.description);
  about.hidden = !pipeline.description;
  sync(queues, pipeline.queues.map((queue) => [queue.key, makeQueue, fillQueue, queue]));
  set(empty, total ? (found ? "" : "Nothing here fits the filter.") : "Nothing is waiting here.");
  empty.hidden = Boolean(found);
}

function fits(item) {
  const wanted = filter.value.trim().toLowerCase(), said = item.refs.flatMap((ref) => [ref.project, ref.id, ref.subject, ref.branch, ref.owner]);
  return !wanted || said.join(" ").toLowerCase().includes(wanted);
}

// What people let stand still.
function standing(told) {
  const said = { trigger_queue_discarding: "what happens starts nothing and is not kept", trigger_queue_paused: "what happens starts nothing for now", result_queue_paused: "results are not taken up for now" };
  const found = Object.keys(said).filter((name) => told[name]).map((name) => said[name]);
  return found.length ? [{ project: tenant, text: [...found, told.reason].filter(Boolean).join("; ") }] : [];
}

function draw() {
  if (!status) return;
  const only = subject;
  let seen = 0;
  sync(troubles, [...standing(status.state), ...status.troubles].map((trouble) => [trouble.project, () => el("p"), (node) => set(node, `${trouble.project}: ${trouble.text}`), trouble]));
  sync(pipelines, status.pipelines.filter((pipeline) => !only || pipeline.name === only).map((pipeline) => {
    const queues = pipeline.change_queues.map((queue, n) => {
      const of = queue.heads.flat().map((id) => items.get(id)).filter(Boolean);
      return { ...queue, total: of.length, key: queue.window ? `${queue.name}${n}` : of.at(-1)?.id ?? String(n), items: of.filter(fits) };
    });
    const total = queues.reduce((sum, queue) => sum + queue.total, 0);
    seen += queues.reduce((sum, queue) => sum + queue.items.length, 0);
    return [pipeline.name, makePipeline, fillPipeline, { ...pipeline, total, queues: queues.filter((queue) => queue.items.length) }];
  }));
  for (const node of running.keys()) if (!node.isConnected) running.delete(node);
  set(count, filter.value ? `${seen} of ${items.size} items` : !status.state.loaded ? "The configuration is being read…" : "");
  set(all, wide() ? "Fold all" : "Unfold all");
  all.hidden = !items.size;
}

function heard(event) {
  const said = JSON.parse(event.data);
  status = said.status;
  skew = said.now - Date.now();
  for (const [id, item] of Object.entries(said.items)) items.set(id, item);
  const there = new Set(status.pipelines.flatMap((p) => p.change_queues.flatMap((q) => q.heads.flat())));
  for (const id of items.keys()) if (!there.has(id)) { items.delete(id); memory.delete(id); toggled.delete(id); }
  draw();
}

// --- the connection: closed while nobody looks, begun again with growing pauses when it is lost
let source = null, wait = 1000, again = 0;

function connect() {
  clearTimeout(again);
  source?.close();
  source = listen(() => { items = new Map(); wait = 1000; as(state, "live"); set(state, "live"); }, async () => {
    source.close();
    const found = await fetch(`${api}/status`, { method: "HEAD", headers: bearing() }).catch(() => null);
    if ([401, 403, 404].includes(found?.status)) return refused(found.status);
    as(state, "lost");
    set(state, "connection lost, trying again…");
    again = setTimeout(connect, wait);
    wait = Math.min(wait * 2, 30000);
  });
}

// It will not be otherwise until somebody logs in, or others let them.
function refused(status) {
  as(state, "");
  set(state, "");
  pipelines.replaceChildren();
  main.querySelector("p.bad")?.remove();
  trouble(Object.assign(new Error(status === 401 ? `Tenant ${tenant} is shown to those who log in.` : status === 403 ? `You may not read tenant ${tenant}.` : `There is no tenant ${tenant}.`), { status }));
}

// An EventSource sends no token: who logged in reads the same stream as an answer.
function listen(opened, lost) {
  if (!token()) {
    const events = new EventSource(`${api}/events`);
    events.addEventListener("status", heard);
    events.onopen = opened;
    events.onerror = lost;
    return events;
  }
  const stop = new AbortController();
  (async () => {
    const answer = await fetch(`${api}/events`, { headers: bearing(), signal: stop.signal });
    if (!answer.ok) throw new Error(answer.status);
    opened();
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ""; ;) {
      const { value, done } = await reader.read();
      if (done) throw new Error("it ended");
      const blocks = (rest + value).split(/\r?\n\r?\n/);
      rest = blocks.pop();
      for (const block of blocks) {
        const data = block.split(/\r?\n/).filter((line) => line.startsWith("data:")).map((line) => line.slice(5)).join("\n");
        if (data) heard({ data });
      }
    }
  })().catch(() => stop.signal.aborted || lost());
  return { close: () => stop.abort() };
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) return connect();
  clearTimeout(again);
  source?.close();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !/INPUT|TEXTAREA/.test(document.activeElement.tagName)) { event.preventDefault(); filter.focus(); }
});
setInterval(() => { if (!document.hidden) for (const [node, job] of running) tick(node, job); }, 1000);
connect();
