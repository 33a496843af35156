import { el, fetched, main, nav, table, trouble } from "./page.js";
nav("queues", "Queues of messages");
const AGAIN_MS = 3000;
const body = el("div");
main.append(el("h1", {}, "Queues of messages"), body);
const look = (state) => (state.startsWith("processed") ? "good" : state.startsWith("unreadable") ? "bad" : "mute");
function shown(app) {
  const workers = table(["Worker", "Host and process", "Partitions"], app.workers.map((w) => [w.worker, w.host, String(w.queues.length)]), "No worker is there just now.");
  const rows = app.partitions.map((p) => [p.partition, el("span", { class: `result ${look(p.state)}` }, p.state), p.worker, p.processed_until, p.retrying ? String(p.retrying) : ""]);
  return [el("h2", {}, app.application), workers, table(["Partition", "State", "Worker", "Processed until", "To be tried again"], rows, "No queue is known yet.")];
}
async function draw() {
  try {
    const found = await fetched("/api/queues");
    body.replaceChildren(...(found.length ? found.flatMap(shown) : [el("p", { class: "note" }, "No worker of queues has used this store.")]));
  } catch (error) { body.replaceChildren(); trouble(error); return; }
  setTimeout(draw, AGAIN_MS);
}
draw();
