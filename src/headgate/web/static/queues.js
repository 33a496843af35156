import { el, fetched, main, nav, table } from "./page.js";
import { watch } from "./live.js";
nav("queues", "Message queues");
const body = el("div");
main.append(el("h1", {}, "Message queues"), body);
const look = (state) => (state.startsWith("processed") ? "good" : state.startsWith("unreadable") ? "bad" : "mute");
function shown(app) {
  const workers = table(["Worker", "Host and process", "Partitions"], app.workers.map((w) => [w.worker, w.host, String(w.queues.length)]), "No worker is running.");
  const rows = app.partitions.map((p) => [p.partition, el("span", { class: `result ${look(p.state)}` }, p.state), p.worker, p.processed_until, p.retrying ? String(p.retrying) : ""]);
  return [el("h2", {}, app.application), workers, table(["Partition", "State", "Worker", "Processed until", "Retrying"], rows, "There are no queues yet.")];
}
watch("/api/queues", body, (found) => (found.length ? found.flatMap(shown) : [el("p", { class: "note" }, "No queue worker has used this store.")]));
const { info } = await fetched("/api/info").catch(() => ({ info: { beside: [] } }));
if (info.beside.includes("queues")) main.append(el("p", {}, "For messages, schedules, dead letters and replay, see the ", el("a", { href: "/queues/" }, "page of the queue server"), "."));
