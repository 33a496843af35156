import { el, main, nav, table, showError } from "./page.js";
import { request as answered, busy, keep, renew } from "./live.js";
nav("messages", "Message queues");
const AGAIN_MS = 5000, MANY = 1000, DEAD_LETTERS = "headgate_dead_letters", SHOWN = 200;
const query = new URLSearchParams(location.search);
const app = query.get("app") ?? "", queue = query.get("queue") ?? "";
const here = (found) => `?${new URLSearchParams(found)}`;
const api = (...names) => `/v1/${names.map(encodeURIComponent).join("/")}`;
const size = (bytes) => (bytes < 10_000 ? `${bytes}\u00a0B` : bytes < 10_000_000 ? `${Math.round(bytes / 1000)}\u00a0kB` : `${Math.round(bytes / 1e6)}\u00a0MB`);
const counted = (number) => (number ? `${number}${number >= MANY ? " or more" : ""}` : "");
const lag = (number) => (number ? el("span", { class: "result busy" }, counted(number)) : el("span", { class: "result good" }, "none"));
const moment = (seconds) => el("time", { datetime: new Date(seconds * 1000).toISOString() }, new Date(seconds * 1000).toLocaleString());
const cut = (text) => el("code", {}, text.length > SHOWN ? `${text.slice(0, SHOWN)}…` : text);
const body = el("div");

async function change(method, url, headers = {}, data = undefined) {
  await answered(url, { method, headers, body: data });
}

let reading;  // the signal that aborts the current requests
async function had(url) {
  try {
    return await (await answered(url, { signal: reading })).json();
  } catch (error) {
    if (error.status === 401) error.message = "Log in with a key of an application or with the operator's token to see queues.";
    throw error;
  }
}

function bounds(q) {
  const sizes = [q.messages_max ? `${q.messages_max} messages` : "", q.bytes_max ? size(q.bytes_max) : ""].filter(Boolean).join(", ");
  return [sizes && `${sizes} per partition, then ${q.full}`, q.age_max ? `${q.age_max} s` : ""].filter(Boolean).join("; ");
}

async function overview() {
  const { applications } = await had("/v1");
  const found = await Promise.all(applications.map(async (name) => {
    const { queues } = await had(`${api(name)}?details=true&include_size=true&limit=1000`);
    const rows = queues.map((q) => [el("a", { href: here({ app: name, queue: q.queue_name }) }, q.queue_name === DEAD_LETTERS ? "Dead letters" : q.queue_name),
      String(q.partitions), q.priorities ? String(q.priorities) : "", String(q.messages), size(q.bytes), bounds(q)]);
    return [el("h2", {}, name), table(["Queue", "Partitions", "Priorities", "Messages", "Size", "Limits"], rows, "It has no queues yet.")];
  }));
  return found.length ? found.flat() : [el("p", { class: "note" }, "This token gives access to no application.")];
}

async function one() {
  const [{ partitions }, { schedules }] = await Promise.all([had(`${api(app, queue)}/status`), had(`${api(app, queue)}/schedules`)]);
  const ranked = partitions.some((p) => p.priority);
  const rows = partitions.flatMap((p) => (p.groups.length ? p.groups : [null]).map((g, n) => [n ? "" : String(p.partition), ...(ranked ? [n ? "" : String(p.priority)] : []), n ? "" : String(p.messages), n ? "" : size(p.bytes), n ? "" : counted(p.delayed),
    g ? g.group : "", g ? (g.held ? [el("span", { class: "result good" }, "held"), ` ${g.worker}`] : el("span", { class: "small" }, g.worker ? `free, last ${g.worker}` : "free")) : "", g ? lag(g.waiting) : "", g ? counted(g.retrying) : ""]));
  // Each partition needs a request, so a queue with a thousand partitions shows only messages of its first twenty.
  const next = await Promise.all(partitions.slice(0, 20).map((p) => had(`${api(app, queue)}?order=descending&limit=5&partitions=${p.partition}`)));
  const newest = next.flatMap((page) => page.messages).sort((a, b) => Number(b.timestamp) - Number(a.timestamp)).slice(0, 20);
  return [el("h2", {}, "Partitions"), table(["Partition", ...(ranked ? ["Priority"] : []), "Messages", "Size", "Not due yet", "Group", "Worker", "Waiting", "Retrying"], rows, ""),
    el("p", { class: "small" }, "Only groups of workers over HTTP are shown. For workers with their own store, use ", el("code", {}, "headgate queue list"), "."),
    ...(schedules.length ? [el("h2", {}, "Schedules"), table(["Schedule", "Fields", "Zone", "Next", "Message", "Problem"],
      schedules.map((s) => [s.name, el("code", {}, s.cron), s.zone, moment(Number(s.next_at)), cut(s.body), s.problem ? el("span", { class: "result bad" }, s.problem) : ""]), "")] : []),
    el("h2", {}, "Newest messages"), table(["Posted", "Partition", "Message"], newest.map((m) => [moment(Number(m.timestamp)), String(m.partition), cut(m.body)]), "There are no messages.")];
}

function deadLetter(message) {
  const end = message.body.indexOf("\n");
  try { return { id: message.message_id, ...JSON.parse(message.body.slice(0, end)), body: message.body.slice(end + 1) }; } catch { return null; }
}

// Replay like `headgate queue replay`: post the message, once however often this is tried, then delete the dead letter.
async function replay(dead, button) {
  button.disabled = true;
  try {
    await change("POST", api(app, dead.queue), { "Idempotency-Key": `replay-${dead.id}`, "X-Partition": String(dead.partition), "Content-Type": "text/plain; charset=utf-8" }, dead.body);
    // Delete only after the post: after a failure in between, the idempotency key makes another post harmless.
    await change("DELETE", `${api(app, DEAD_LETTERS)}/1:${dead.id}`);
    again();
  } catch (error) { button.disabled = false; showError(error); }
}

async function deadLetters() {
  const { messages } = await had(`${api(app, DEAD_LETTERS)}?order=descending&limit=100`);
  const rows = messages.map(deadLetter).filter(Boolean).map((d) => {
    const button = el("button", { type: "button", onclick: () => replay(d, button) }, "Replay");
    return [button, moment(d.dead_ms / 1000), `${d.queue}:${d.partition}`, String(d.attempts), d.error.length > SHOWN ? `${d.error.slice(0, SHOWN)}…` : d.error, cut(d.body)];
  });
  return [el("p", { class: "small" }, "Messages whose processing was given up. Replay posts a message to its partition again, once."),
    table(["", "Given up", "Partition", "Attempts", "Error", "Message"], rows, "There are no dead letters.")];
}

let drawn = false;
async function draw(signal) {
  reading = signal;
  const nodes = await (!app || !queue ? overview() : queue === DEAD_LETTERS ? deadLetters() : one());
  if (!drawn || !busy(body)) renew(body, nodes);
  drawn = true;
  return AGAIN_MS;
}
main.append(el("h1", {}, !queue ? "Message queues" : queue === DEAD_LETTERS ? `Dead letters of ${app}` : `${app}: ${queue}`),
  ...(queue ? [el("p", {}, el("a", { href: location.pathname }, "All queues"))] : []), body);
const again = keep(draw, (error) => { body.replaceChildren(el("p", { class: "note bad", role: "alert" }, error.message)); });
