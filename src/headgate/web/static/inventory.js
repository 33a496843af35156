// The inventory: a search, an object, its history; from the same JSON that programs have.
import { bearing, el, facts, main, nav, table, token, when } from "./page.js";
nav("inventory", "Inventory");
const PAGE_ROWS = 50;
const base = location.pathname.replace(/\/*$/, "/");
const query = new URLSearchParams(location.search);
const SESSION = ["partition", "project", "user"];
const said = Object.fromEntries(SESSION.map((name) => [name, query.get(name) ?? sessionStorage.getItem(`inventory-${name}`) ?? ""]));
for (const name of SESSION) sessionStorage.setItem(`inventory-${name}`, said[name]);

async function asked(path, body) {
  const headers = { ...bearing(), ...Object.fromEntries(SESSION.filter((name) => said[name]).map((name) => [`headgate-${name}`, said[name]])) };
  const answer = await fetch(base + path, body ? { method: "POST", headers: { ...headers, "Content-Type": "application/json" }, body: JSON.stringify(body) } : { headers });
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(told.detail ?? `${path} answered ${answer.status}`);
  return told;
}

const alarm = (error) => el("p", { class: "note bad", role: "alert" }, error.message);
const moment = (ms) => (Number(ms) ? when(new Date(Number(ms)).toISOString().replace("Z", "")) : "");
const address = (more) => `${location.pathname}?${new URLSearchParams({ ...Object.fromEntries(SESSION.filter((name) => said[name]).map((name) => [name, said[name]])), ...more })}`;
const pairs = (properties) => Object.entries(properties ?? {}).sort().map(([key, value]) => el("span", { class: "small" }, `${key}=${value} `));

function form(text) {
  const field = (name, label, value) => el("input", { type: "search", name, value, placeholder: label.toLowerCase(), "aria-label": label });
  return el("form", { class: "tools filters", role: "search", method: "get", action: location.pathname },
    field("q", "Search", text), field("partition", "Partition", said.partition), field("project", "Project", said.project),
    token() ? "" : field("user", "User", said.user), el("button", {}, "Search"));
}

async function list() {
  const text = query.get("q") ?? "", body = el("div"), more = el("nav", { class: "tools", "aria-label": "More rows" });
  main.append(el("h1", {}, "Inventory"), form(text), el("p", { class: "small" }, "For example: type=runm.machine memory>=64 tag:gpu !reserved name=web*"), body, more);
  if (!said.partition) { body.append(el("p", { class: "note" }, "Say in which partition to search.")); return; }
  const rows = [];
  async function next(page_token) {
    try {
      const found = await asked("v1/objects/search", { filters: text.trim() ? [text] : [], limit: PAGE_ROWS, page_token });
      rows.push(...(found.objects ?? []).map((one) => [el("a", { href: address({ uuid: one.uuid }) }, one.name), one.type, one.project ?? "", pairs(one.properties), (one.tags ?? []).join(" ")]));
      body.replaceChildren(table(["Name", "Type", "Project", "Properties", "Tags"], rows, found.next_page_token ? "Nothing so far." : "Nothing matches, or nothing that you may see."));
      more.replaceChildren(...(found.next_page_token ? [el("button", { type: "button", onclick: () => next(found.next_page_token) }, "More"), found.bounded ? el("span", { class: "small" }, "This is a broad question: not all has been looked at yet.") : ""] : []));
    } catch (error) { body.replaceChildren(alarm(error)); more.replaceChildren(); }
  }
  await Promise.all([next(""), leases()]);
}

async function leases(uuid) {
  const found = (await asked("v1/leases").catch(() => ({}))).leases ?? [];
  const shown = found.filter((one) => !uuid || one.object === uuid);
  if (!shown.length) return;
  const rows = shown.map((one) => [one.name ? el("a", { href: address({ uuid: one.object }) }, one.name) : one.search ?? "", one.state.toLowerCase(), pairs(one.amounts), one.user, moment(one.until_ms) || `${one.ahead ?? 0} before it`, one.note ?? ""]);
  main.append(el("h2", {}, "Leases"), table(["What", "State", "Of it", "User", "Until", "Note"], rows, ""));
}

// What differs from one state of an object to the next.
function differences(before, after) {
  const flat = (one) => ({ name: one.name, ...Object.fromEntries((one.tags ?? []).map((tag) => [`tag ${tag}`, "yes"])), ...Object.fromEntries(Object.entries(one.properties ?? {}).map(([key, value]) => [`property ${key}`, value])) });
  const [old, now] = [before ? flat(before) : {}, flat(after)];
  return [...new Set([...Object.keys(old), ...Object.keys(now)])].sort().filter((key) => old[key] !== now[key])
    .map((key) => el("li", {}, `${key}: `, key in old ? el("del", {}, old[key]) : "", key in old && key in now ? " → " : "", key in now ? el("ins", {}, now[key]) : ""));
}

const STATES = { HEALTHY: "healthy", UNHEALTHY: "unhealthy: given to nobody" };

// Whether probes find it well; nothing where nobody looks.
async function health(uuid) {
  const found = await asked(`v1/health/${encodeURIComponent(uuid)}`).catch(() => ({}));
  const since = moment(found.since_ms);
  return STATES[found.state] ? [["Health", [STATES[found.state], since && `since ${since}`, found.why].filter(Boolean).join(", ")]] : [];
}

async function object(uuid) {
  try {
    const [one, past, well] = await Promise.all([asked(`v1/objects/${encodeURIComponent(uuid)}`), asked(`v1/objects/${encodeURIComponent(uuid)}/history`), health(uuid)]);
    const changes = past.changes ?? [];
    main.append(el("p", {}, el("a", { href: address({}) }, "← Inventory")), el("h1", {}, one.name), facts([["Type", one.type], ["Project", one.project], ["Partition", one.partition], ["Uuid", one.uuid], ["Generation", one.generation], ["Tags", (one.tags ?? []).join(" ")], ...well]),
      el("h2", {}, "Properties"), table(["Property", "Value"], Object.entries(one.properties ?? {}).sort(), "It has none."));
    await leases(uuid);
    const rows = changes.map((change, number) => [moment(change.at_ms), change.user ?? "", change.kind.toLowerCase(), el("ul", { class: "plain" }, differences(number ? changes[number - 1].new : null, change.new))]);
    main.append(el("h2", {}, "History"), table(["When", "Who", "What", "Difference"], rows.reverse(), "Nothing is known of it."));
  } catch (error) { main.append(el("p", {}, el("a", { href: address({}) }, "← Inventory")), alarm(error)); }
}

if (query.get("uuid")) object(query.get("uuid"));
else list();
