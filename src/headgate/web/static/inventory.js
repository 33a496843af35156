// The inventory: a search, an object and its history, from the JSON API.
import { el, facts, main, nav, table, token, showError, when } from "./page.js";
import { request as answered, busy, keep, renew } from "./live.js";
nav("inventory", "Inventory");
const PAGE_ROWS = 50, AGAIN_MS = 15_000;
const base = location.pathname.replace(/\/*$/, "/");
const query = new URLSearchParams(location.search);
const SESSION = ["partition", "project", "user"];
const session = Object.fromEntries(SESSION.map((name) => [name, query.get(name) ?? sessionStorage.getItem(`inventory-${name}`) ?? ""]));
for (const name of SESSION) sessionStorage.setItem(`inventory-${name}`, session[name]);

let reading;  // the signal that aborts the current requests
async function ask(path, body) {
  const headers = { ...Object.fromEntries(SESSION.filter((name) => session[name]).map((name) => [`headgate-${name}`, session[name]])) };
  return (await answered(base + path, { headers, signal: reading, ...(body ? { method: "POST", headers: { ...headers, "Content-Type": "application/json" }, body: JSON.stringify(body) } : {}) })).json();
}

// Read and draw repeatedly, unless somebody is using the page.
function follow(body, draw) {
  let drawn = false;
  return keep(async (signal) => {
    reading = signal;
    const nodes = await draw();
    if (!drawn || !busy(body)) renew(body, nodes);
    drawn = true;
    return AGAIN_MS;
  }, (error) => { body.replaceChildren(); showError(error); });
}
// Optional parts of a page: a refused request leaves them out.
const perhaps = (path) => ask(path).catch((error) => { if (!error.status) throw error; return {}; });

const moment = (ms) => (Number(ms) ? when(new Date(Number(ms)).toISOString().replace("Z", "")) : "");
const address = (more) => `${location.pathname}?${new URLSearchParams({ ...Object.fromEntries(SESSION.filter((name) => session[name]).map((name) => [name, session[name]])), ...more })}`;
const pairs = (properties) => Object.entries(properties ?? {}).sort().map(([key, value]) => el("span", { class: "pair" }, el("span", { class: "small" }, `${key}=`), `${value} `));

function form(text) {
  const field = (name, label, value) => el("input", { type: "search", name, value, placeholder: label.toLowerCase(), "aria-label": label });
  return el("form", { class: "tools filters", role: "search", method: "get", action: location.pathname },
    el("span", { class: "query" }, field("q", "Search", text)), field("partition", "Partition", session.partition), field("project", "Project", session.project),
    token() ? "" : field("user", "User", session.user), el("button", {}, "Search"));
}

function list() {
  const text = query.get("q") ?? "", body = el("div");
  let pages = 1;
  main.append(el("h1", {}, "Inventory"), form(text), el("p", { class: "small" }, "For example: type=runm.machine memory>=64 tag:gpu !reserved name=web*"), body);
  if (!session.partition) { body.append(el("p", { class: "note" }, "Enter the partition to search in.")); return; }
  const row = (one) => [el("a", { href: address({ uuid: one.uuid }) }, one.name), one.type, one.project ?? "", pairs(one.properties), (one.tags ?? []).join(" ")];
  async function draw() {
    const rows = [];
    let found = { next_page_token: "" };
    // All pages that were opened are read again, as tokens only continue a search and do not identify a page.
    for (let page = 0; page < pages && (!page || found.next_page_token); page++) {
      found = await ask("v1/objects/search", { filters: text.trim() ? [text] : [], limit: PAGE_ROWS, page_token: found.next_page_token });
      rows.push(...(found.objects ?? []).map(row));
    }
    const more = found.next_page_token ? [el("button", { type: "button", onclick: () => { pages += 1; again(); } }, "More"), found.bounded ? el("span", { class: "small" }, "This search is broad: not all objects have been examined yet.") : ""] : [];
    return [table(["Name", "Type", "Project", "Properties", "Tags"], rows, found.next_page_token ? "Nothing found so far." : "Nothing matches that you may see."), el("nav", { class: "tools", "aria-label": "More rows" }, more), await leases()];
  }
  const again = follow(body, draw);
}

async function leases(uuid) {
  const found = (await perhaps("v1/leases")).leases ?? [];
  const shown = found.filter((one) => !uuid || one.object === uuid);
  if (!shown.length) return [];
  const rows = shown.map((one) => [one.name ? el("a", { href: address({ uuid: one.object }) }, one.name) : one.search ?? "", one.state.toLowerCase(), pairs(one.amounts), one.user, moment(one.until_ms) || `${one.ahead ?? 0} ahead of it`, one.note ?? ""]);
  return [el("h2", {}, "Leases"), table(["Machine", "State", "Amounts", "User", "Until", "Note"], rows, "")];
}

// The differences between two successive states of an object.
function differences(before, after) {
  const flat = (one) => ({ name: one.name, ...Object.fromEntries((one.tags ?? []).map((tag) => [`tag ${tag}`, "yes"])), ...Object.fromEntries(Object.entries(one.properties ?? {}).map(([key, value]) => [`property ${key}`, value])) });
  const [old, now] = [before ? flat(before) : {}, flat(after)];
  return [...new Set([...Object.keys(old), ...Object.keys(now)])].sort().filter((key) => old[key] !== now[key])
    .map((key) => el("li", {}, `${key}: `, key in old ? el("del", {}, old[key]) : "", key in old && key in now ? " → " : "", key in now ? el("ins", {}, now[key]) : ""));
}

const STATES = { HEALTHY: "healthy", UNHEALTHY: "unhealthy: not leased" };

// The result of probes; empty if the object is not probed.
async function health(uuid) {
  const found = await perhaps(`v1/health/${encodeURIComponent(uuid)}`);
  const since = moment(found.since_ms);
  return STATES[found.state] ? [["Health", [STATES[found.state], since && `since ${since}`, found.why].filter(Boolean).join(", ")]] : [];
}

async function object(uuid) {
  const [one, past, well, leased] = await Promise.all([ask(`v1/objects/${encodeURIComponent(uuid)}`), ask(`v1/objects/${encodeURIComponent(uuid)}/history`), health(uuid), leases(uuid)]);
  const changes = past.changes ?? [];
  const rows = changes.map((change, number) => [moment(change.at_ms), change.user ?? "", change.kind.toLowerCase(), el("ul", { class: "plain" }, differences(number ? changes[number - 1].new : null, change.new))]);
  return [el("h1", {}, one.name), facts([["Type", one.type], ["Project", one.project], ["Partition", one.partition], ["Uuid", one.uuid], ["Generation", one.generation], ["Tags", (one.tags ?? []).join(" ")], ...well]),
    el("h2", {}, "Properties"), table(["Property", "Value"], Object.entries(one.properties ?? {}).sort(), "It has no properties."), leased,
    el("h2", {}, "History"), table(["When", "Who", "Change", "Difference"], rows.reverse(), "There is no history.")];
}

if (query.get("uuid")) {
  const body = el("div");
  main.append(el("p", {}, el("a", { href: address({}) }, "← Inventory")), body);
  follow(body, () => object(query.get("uuid")));
} else list();
