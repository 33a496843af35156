// Keeps every page up to date: a loop that reads, waits and retries, and a line in the header that shows how current the
// page is.  The loop stops while the page is not visible.
import { bearing, state, showError } from "./page.js";

const FIRST_MS = 1000, LAST_MS = 30_000, SILENT_MS = 110_000; // a stream sends something at least every 45 s
const TICK_MS = 1000;
const ENDS = [400, 401, 403, 404, 409];
const AWAY = "Headgate-Away-Since";
let phase = "", seen = 0, away = 0, skew = 0;

// The time by the server's clock.
export const now = () => Date.now() + skew;
export function setClock(server) { if (Number.isFinite(server)) skew = server - Date.now(); }

// --- the line in the header
function show(name, text) {
  phase = name;
  if (state.className !== name) state.className = name;
  if (state.textContent !== text) state.textContent = text;
}
const age = () => (seen ? `last seen ${ago(Date.now() - seen)}` : "not reached yet");
function refresh() {
  if (phase === "lost") show("lost", `${age()}, retrying…`);
  else if (phase === "live" || phase === "stale") away ? show("stale", `the store is unreachable: as of ${ago(now() - away)}`) : show("live", "live");
}

// The server has just responded; `since`: since when the server cannot reach its store, 0 if it can.
export function alive(since = 0) {
  seen = Date.now();
  away = since;
  state.title = "";
  phase = "live";
  refresh();
}
export const over = (text = "complete") => show("", text);
function lost(error) {
  phase = "lost";
  state.title = error.message;
  refresh();
}

// --- times that are updated every second
export function ago(ms) {
  const s = Math.max(0, Math.floor(ms / 1000));
  return s < 60 ? `${s} s ago` : s < 3600 ? `${Math.floor(s / 60)} min ago` : s < 172_800 ? `${Math.floor(s / 3600)} h ago` : `${Math.floor(s / 86_400)} days ago`;
}
const until = (ms) => `in ${ago(ms).slice(0, -4)}`;
function tick() {
  if (document.hidden) return;
  refresh();
  for (const node of document.querySelectorAll("time")) {
    if (!node.dataset.at) continue;
    const passed = now() - Number(node.dataset.at), text = passed < -TICK_MS ? until(-passed) : ago(passed);
    if (node.textContent !== text) node.textContent = text;
  }
}
setInterval(tick, TICK_MS);

// --- the loop
/**
 * Call `attempt` repeatedly, after as many milliseconds as it returns, until it returns null.  If it fails, retry after a
 * growing pause; a refusal such as 403 or 404 ends the loop.
 * @param {(signal: AbortSignal, good: () => void) => Promise<?number>} attempt
 * @param {(error: Error & { status?: number }) => void} [refused]
 * @returns {() => void} restarts the loop
 */
export function keep(attempt, refused = showError) {
  let pause = FIRST_MS, timer = 0, stop = null, ended = false;
  async function turn() {
    clearTimeout(timer);
    // Two turns must never run at once: a late response to the first would overwrite a newer state.
    stop?.abort();
    const mine = stop = new AbortController();
    try {
      const again = await attempt(mine.signal, () => { pause = FIRST_MS; });
      if (mine.signal.aborted) return;
      pause = FIRST_MS;
      if (again === null) ended = true; else timer = setTimeout(turn, again);
    } catch (error) {
      if (mine.signal.aborted) return;
      if (ENDS.includes(error.status)) { ended = true; over(""); refused(error); return; }
      lost(error);
      // With jitter: after a restart of the server, its pages must not all return at the same moment.
      timer = setTimeout(turn, pause * (.75 + Math.random() / 2));
      pause = Math.min(pause * 2, LAST_MS);
    }
  }
  document.addEventListener("visibilitychange", () => {
    if (ended) return;
    // Hidden tabs cost the server nothing, and are updated at once when they become visible.
    if (document.hidden) { clearTimeout(timer); stop?.abort(); } else turn();
  });
  addEventListener("online", () => ended || turn());
  if (!document.hidden) turn();
  return () => { if (!ended || !stop.signal.aborted) { ended = false; turn(); } };
}

async function failure(answer, url) {
  const refusal = await answer.json().catch(() => ({}));
  const why = refusal.description ?? refusal.detail ?? Object.values(refusal.error_msg ?? {}).join("; ");
  return Object.assign(new Error(why || `${url} answered ${answer.status}`), { status: answer.status });
}

/**
 * Return a successful response; its headers about the time and the store update the line in the header of the page.
 * @param {string} url
 * @param {RequestInit} [init]
 */
export async function request(url, { headers = {}, ...more } = {}) {
  const answer = await fetch(url, { headers: { ...bearing(), ...headers }, cache: "no-store", ...more });
  if (!answer.ok && answer.status !== 304) throw await failure(answer, url);
  setClock(Date.parse(answer.headers.get("Date")));
  alive(Number(answer.headers.get(AWAY)));
  return answer;
}

// Return the body of a response as text.  Bodies are cached here and not by the browser, which would hide the headers of a
// 304.
async function read(url, signal, cache) {
  const known = cache.get(url);
  const answer = await request(url, { headers: known?.tag ? { "If-None-Match": known.tag } : {}, signal });
  const text = answer.status === 304 ? known.text : await answer.text();
  cache.set(url, { tag: answer.headers.get("ETag"), text });
  return text;
}

// Whether somebody is using something that a redraw would disturb: a dialog, a field or a selection.
export function busy(body) {
  if (document.querySelector("dialog[open]")) return true;
  const held = document.activeElement, marked = getSelection();
  if (body.contains(held) && held.matches(".act, input, select, textarea")) return true;
  return marked && !marked.isCollapsed && body.contains(marked.anchorNode);
}

// Replace the nodes of a part of the page, and preserve focus, open details and scroll positions.
export function renew(body, ...nodes) {
  const held = body.contains(document.activeElement) ? document.activeElement : null;
  // A new node is the same link or button if it has the same address or label.
  const name = (node) => `${node.tagName} ${node.getAttribute("href") ?? ""} ${node.getAttribute("aria-label") ?? node.textContent}`;
  const open = new Set([...body.querySelectorAll("details[open] > summary")].map((one) => one.textContent));
  const scrolled = [...body.querySelectorAll(".tablewrap")].map((one) => [one.scrollLeft, one.scrollTop]);
  const wanted = held && name(held), place = held ? [...body.querySelectorAll(held.tagName)].filter((one) => name(one) === wanted).indexOf(held) : -1;
  body.replaceChildren(...nodes.flat(Infinity).filter((node) => node !== null && node !== undefined && node !== ""));
  for (const one of body.querySelectorAll("details > summary")) if (open.has(one.textContent)) one.parentNode.open = true;
  body.querySelectorAll(".tablewrap").forEach((one, n) => { if (scrolled[n]) [one.scrollLeft, one.scrollTop] = scrolled[n]; });
  if (held) [...body.querySelectorAll(held.tagName)].filter((one) => name(one) === wanted)[place]?.focus({ preventScroll: true });
}

/**
 * Read addresses (or those that a function returns) repeatedly, and draw when the responses have changed.
 * @param {string | string[] | (() => string | string[])} urls
 * @param {HTMLElement} body
 * @param {(...answers: any[]) => any} draw
 * @param {number} [every] milliseconds
 */
export function watch(urls, body, draw, every = 5000) {
  let last = null;
  const cache = new Map();
  const places = () => [].concat(typeof urls === "function" ? urls() : urls);
  const again = keep(async (signal) => {
    const wanted = places(), texts = await Promise.all(wanted.map((url) => read(url, signal, cache)));
    for (const url of cache.keys()) if (!wanted.includes(url)) cache.delete(url);
    const joined = texts.join("\n");
    // An unchanged response leaves the page alone, so that selections, focus and open menus survive.
    if (joined === last || (last !== null && busy(body))) return every;
    const nodes = draw(...texts.map((text) => JSON.parse(text)));
    renew(body, nodes);
    tick();
    last = joined;
    return every;
  }, (error) => { body.replaceChildren(); showError(error); });
  return () => { last = null; return again(); };
}

/**
 * Read server-sent events with `fetch`, so that the request can carry a token and silence is detected.
 * @param {string} url
 * @param {(message: any) => void} heard
 * @param {() => void} opened
 * @param {(error: Error & { status?: number }) => void} refused
 */
export function listen(url, heard, opened, refused) {
  return keep(async (signal, good) => {
    // `EventSource` cannot send headers, and so no token.
    const answer = await fetch(url, { headers: { ...bearing(), Accept: "text/event-stream" }, signal });
    if (!answer.ok) throw await failure(answer, url);
    opened();
    good();
    alive(away);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ""; ;) {
      let quiet = 0;
      const silence = new Promise((_, fail) => { quiet = setTimeout(() => { reader.cancel().catch(() => {}); fail(new Error("the server sends nothing any more")); }, SILENT_MS); });
      const { value, done } = await Promise.race([reader.read(), silence]).finally(() => clearTimeout(quiet));
      if (done) throw new Error("the stream ended");
      alive(away);
      const blocks = (rest + value).split(/\r?\n\r?\n/);
      // The last block has not ended yet: it continues in the next piece.
      rest = blocks.pop();
      for (const block of blocks) {
        const data = block.split(/\r?\n/).filter((line) => line.startsWith("data:")).map((line) => line.slice(5)).join("\n");
        if (data) heard(JSON.parse(data));
      }
    }
  }, refused);
}
