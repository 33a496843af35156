import { api, el, link, look, nav, tenant, took } from "./common.js";

nav("status");
const main = document.getElementById("main"), state = document.getElementById("link");
const filter = el("input", { type: "search", placeholder: "Filter by project or change", "aria-label": "Filter", oninput: () => draw() });
const pipelines = el("div", { class: "pipelines" });
main.append(el("div", { class: "tools" }, el("h1", {}, tenant), filter), pipelines);
let status = null;

// Keyed update: nodes are kept, moved and changed in place, so that nothing flickers.
function sync(parent, wanted) {
  const known = new Map([...parent.children].map((node) => [node.dataset.key, node]));
  wanted.forEach(([key, make, fill, value], index) => {
    let node = known.get(key);
    known.delete(key);
    if (!node) { node = make(); node.dataset.key = key; }
    if (parent.children[index] !== node) parent.insertBefore(node, parent.children[index] ?? null);
    fill(node, value);
  });
  for (const node of known.values()) node.remove();
}

const set = (node, text) => { if (node.textContent !== text) node.textContent = text; };
const as = (node, name) => { if (node.className !== name) node.className = name; };

function makeJob() {
  return el("div", { class: "job" }, el("span", { class: "name" }), el("div", { class: "bar" }, el("i")), el("span", { class: "result" }));
}

function fillJob(node, job) {
  const [name, bar, result] = node.children;
  const key = `${job.uuid}${job.name}`;
  if (name.dataset.key !== key) {
    name.dataset.key = key;
    name.replaceChildren(job.uuid && (job.running || job.result) ? link("build", job.uuid, job.name) : job.name);
  }
  const kind = job.result ? look(job.result) : job.running ? "busy" : "mute";
  as(bar, `bar ${job.result ? `done ${kind}` : job.running ? "running" : ""}`);
  as(result, `result ${kind}`);
  set(result, job.result ? job.result + (job.voting ? "" : " (non-voting)") : job.running ? `running ${took(job.elapsed_time)}` : job.uuid ? "queued" : "waiting");
  result.title = job.error || job.waiting_status || "";
}

function makeItem() {
  return el("article", { class: "item" }, el("div", { class: "subject" }), el("div", { class: "small" }), el("div", { class: "reasons" }), el("div"));
}

function fillItem(node, item) {
  const ref = item.refs[0], [subject, small, reasons, jobs] = node.children;
  const done = item.jobs.length > 0 && item.jobs.every((job) => job.result);
  const kind = item.failing_reasons.length ? "failing" : !item.active ? "waiting" : done ? "good" : "busy";
  as(node, `item ${kind}${item.item_ahead ? " behind" : ""}${item.live ? "" : " waiting"}`);
  set(subject, ref.subject || ref.ref);
  set(small, `${ref.project} · ${ref.id || ref.ref} · ${ref.branch}${item.live ? "" : " · needed by the change below"}${item.phase ? ` · ${item.phase}` : ""}`);
  set(reasons, item.failing_reasons.length ? `Fails because ${item.failing_reasons.join(", ")}` : "");
  sync(jobs, item.jobs.map((job) => [job.name, makeJob, fillJob, job]));
}

function fillQueue(node, queue) {
  set(node.firstChild, `${queue.name}${queue.window ? ` · window ${queue.window}` : ""}`);
  sync(node.lastChild, queue.items.map((item) => [item.id, makeItem, fillItem, item]));
}

const makeQueue = () => el("section", { class: "queue" }, el("div", { class: "name" }), el("div"));
const makePipeline = () => el("section", { class: "pipeline" },
  el("div", { class: "head" }, el("h2"), el("span", { class: "small" })), el("div"), el("div", { class: "empty" }));

function fillPipeline(node, pipeline) {
  const [head, queues, empty] = node.children;
  const count = pipeline.queues.reduce((sum, queue) => sum + queue.items.length, 0);
  const events = pipeline.trigger_events + pipeline.result_events + pipeline.management_events;
  set(head.firstChild, pipeline.name);
  set(head.lastChild, `${pipeline.manager} · ${count} ${count === 1 ? "item" : "items"}${events ? ` · ${events} events waiting` : ""}${pipeline.state === "error" ? " · cannot be read" : ""}`);
  sync(queues, pipeline.queues.map((queue) => [queue.key, makeQueue, fillQueue, queue]));
  set(empty, count ? "" : "Nothing is waiting here.");
}

function fits(item) {
  const word = filter.value.trim().toLowerCase(), ref = item.refs[0];
  return !word || [ref.project, ref.id, ref.subject, ref.branch].join(" ").toLowerCase().includes(word);
}

function draw() {
  if (!status) return;
  sync(pipelines, status.pipelines.map((pipeline) => {
    const queues = pipeline.change_queues
      .map((queue, n) => ({ ...queue, key: queue.heads[0]?.[0]?.id && !queue.window ? queue.heads[0].at(-1).id : `${queue.name}${n}`, items: queue.heads.flat().filter(fits) }))
      .filter((queue) => queue.items.length);
    return [pipeline.name, makePipeline, fillPipeline, { ...pipeline, queues }];
  }));
}

const source = new EventSource(`${api}/events`);
source.addEventListener("status", (event) => { status = JSON.parse(event.data); draw(); });
source.onopen = () => { state.className = ""; state.textContent = "live"; };
source.onerror = () => { state.className = "lost"; state.textContent = "connection lost, trying again…"; };
setInterval(() => {
  for (const pipeline of status?.pipelines ?? []) for (const queue of pipeline.change_queues) for (const item of queue.heads.flat())
    for (const job of item.jobs) if (job.running && job.elapsed_time !== null) job.elapsed_time += 1000;
  draw();
}, 1000);
