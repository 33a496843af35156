// Compare the log of a build with that of the last success: read both, and let a worker find the differences.
import { Compared } from "./compared.js";
import { BYTES_MAX } from "./compare.js";
import { fetchLog, linesOf } from "./joblog.js";

const WHY = { 401: "cannot be read: log in first", 403: "cannot be read: you lack the permission", 404: "is no longer available" };
const SIDES = { there: "the last success", here: "this build" };
const megabytes = (size) => `${(size / 1e6).toFixed(size < 1e7 ? 1 : 0)} MB`;

// Pass a log to the worker, no faster than it reads, and to `index`, if given.
async function handed(url, side, index, put, report) {
  const answer = await fetchLog(url);
  if (!answer.ok) throw new Error(`The log of ${SIDES[side]} ${WHY[answer.status] ?? `cannot be read: the server answered ${answer.status}`}.`);
  // The length of a compressed response is not that of the log, so then no total is shown.
  const total = answer.headers.get("Content-Encoding") ? 0 : Math.min(BYTES_MAX, Number(answer.headers.get("Content-Length"))), parts = answer.body.getReader();
  let size = 0;
  for (let part = await parts.read(); !part.done; part = await parts.read()) {
    size += part.value.length;
    index?.feed(part.value);
    // Waiting for the answer keeps the worker's queue short; otherwise a fast network would fill the memory.
    const { more } = await put({ side, data: part.value }, [part.value.buffer]);
    report(`Reading ${SIDES[side]}… ${megabytes(size)}${total ? ` of ${megabytes(total)}` : ""}`);
    if (!more) return void await parts.cancel();
  }
}

/**
 * Compare two logs.
 * @param {import("./lines.js").Lines} here the log of the build, as far as it is read
 * @param {{ there: string, here: string }} urls the addresses of the logs
 * @param {(text: string) => void} report is called with messages about the progress
 * @returns {Promise<{ rows: Compared, parts: number, notes: string[] }>}
 */
export async function compare(here, urls, report) {
  const there = linesOf(urls.there);
  const worker = new Worker(new URL("./differ.js", import.meta.url), { type: "module" });
  const put = (message, moved = []) => new Promise((answered, failed) => {
    worker.onmessage = ({ data }) => answered(data);
    worker.onerror = (event) => failed(new Error(event.message || "The comparison cannot be started."));
    worker.postMessage(message, moved);
  });
  try {
    report("Reading…");
    await handed(urls.there, "there", there, put, report);
    await handed(urls.here, "here", null, put, report);
    report("Comparing…");
    const found = await put({});
    const notes = [found.cut ? "The logs are long: only their beginnings are compared." : "", found.rough ? "They have little in common: some parts are larger than necessary." : ""].filter(Boolean);
    return { rows: new Compared(there, here, found.parts, found), parts: found.parts.length / 4, notes };
  // Also after an error: a worker holds its two logs in memory until it is terminated.
  } finally { worker.terminate(); }
}
