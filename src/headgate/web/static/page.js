// Functions that the pages share. Strings are always inserted as text, never as markup.
export const parts = location.pathname.split("/").map(decodeURIComponent);
export const tenant = parts[1] === "t" ? parts[2] : "";
export const subject = parts.slice(4).join("/");
export const api = `/api/tenant/${encodeURIComponent(tenant)}`;
export const main = document.getElementById("main");
export const state = document.getElementById("link");
// The pages that people use most, and groups of other pages.
/** @typedef {[string, string]} Entry the name of a page, and its label */
/** @type {Entry[]} */
const PAGES = [["status", "Status"], ["builds", "Builds"], ["buildsets", "Buildsets"], ["changes", "Changes"], ["projects", "Projects"], ["jobs", "Jobs"]];
/** @type {[string, Entry[]][]} */
const GROUPS = [
  ["Insights", [["statistics", "Statistics"], ["health", "Health"], ["freeze", "Job graph"]]],
  ["Machines", [["nodes", "Machines"], ["requests", "Requests"], ["providers", "Providers"], ["images", "Images"], ["semaphores", "Semaphores"], ["autoholds", "Autoholds"]]],
  ["System", [["errors", "Errors"], ["components", "Processes"], ["queues", "Queues"], ["reports", "Reports"], ["events", "Events"], ["actions", "Manual actions"]]],
];

/**
 * Create an element with attributes, listeners (`onclick`) and children; null, undefined and "" are left out.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {Object<string, any>} [attributes]
 * @param {...any} children
 * @returns {HTMLElementTagNameMap[T]}
 */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "class") node.className = value;
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

export function nav(current, title = "") {
  const base = `/t/${encodeURIComponent(tenant)}`;
  const entry = (/** @type {Entry} */ [name, label]) => el("a", { href: `${base}/${name}`, "aria-current": name === current ? "page" : null }, label);
  const group = (/** @type {[string, Entry[]]} */ [label, names]) => {
    const here = names.some(([name]) => name === current);
    const menu = el("details", { class: "menu" }, el("summary", { class: here ? "here" : null }, label), el("div", {}, names.map(entry)));
    menu.addEventListener("keydown", (event) => { if (event.key === "Escape" && menu.open) { menu.open = false; menu.querySelector("summary").focus(); } });
    menu.addEventListener("focusout", ({ relatedTarget }) => { if (relatedTarget instanceof Node && !menu.contains(relatedTarget)) menu.open = false; });
    return menu;
  };
  document.addEventListener("click", ({ target }) => { for (const menu of document.querySelectorAll("header details")) if (menu instanceof HTMLDetailsElement && menu.open && target instanceof Node && !menu.contains(target)) menu.open = false; });
  document.getElementById("nav").replaceChildren(...(tenant ? [el("a", { href: "/tenants", class: "tenant", title: "All tenants" }, tenant), ...PAGES.map(entry), ...GROUPS.map(group)] : []));
  if (tenant) document.getElementById("nav").before(unfolding(current, title));
  document.getElementById("link").after(account());
  if (title) document.title = `${title} · Headgate`;
}

// On small screens, the navigation is behind a button that shows the current page.
function unfolding(current, title) {
  const label = [...PAGES, ...GROUPS.flatMap(([, names]) => names)].find(([name]) => name === current)?.[1] ?? title;
  const head = document.querySelector("header"), knob = el("button", { type: "button", class: "unfold", "aria-expanded": "false", "aria-controls": "nav", title: "Pages of the tenant", onclick: () => turn(!head.classList.contains("unfolded")) }, `${tenant}${label ? ` · ${label}` : ""}`);
  const turn = (open) => { head.classList.toggle("unfolded", open); knob.setAttribute("aria-expanded", String(open)); };
  head.addEventListener("keydown", (event) => { if (event.key === "Escape" && head.classList.contains("unfolded")) { turn(false); knob.focus(); } });
  document.addEventListener("click", ({ target }) => { if (target instanceof Node && !head.contains(target)) turn(false); });
  return knob;
}

// A token that a person enters is stored in this tab, and sent with every request. A person who logs in with a provider has
// a cookie that scripts cannot read: the browser sends it, and writes also need `csrf`, which other pages cannot read.
const TOKEN_KEY = "headgate-token";
// These two pages are also served without a gate, where there is no login.
const APART = ["inventory", "messages"].includes(document.querySelector("script[src]").getAttribute("src").match(/(\w+)\.js/)[1]);
export const token = () => sessionStorage.getItem(TOKEN_KEY);
export const login = APART || token() ? Promise.resolve({ realms: [], name: "", csrf: "" }) : fetch("/api/login").then((answer) => answer.json()).catch(() => ({ realms: [], name: "", csrf: "" }));
export const bearing = () => (token() ? { Authorization: `Bearer ${token()}` } : {});
const here = () => encodeURIComponent(location.pathname + location.search);
export const ways = (realms) => realms.map((one) => el("a", { href: `/login?realm=${encodeURIComponent(one.name)}&next=${here()}` }, `Log in with ${one.title}`));

function account() {
  const place = el("span", { class: "account" });
  const field = el("input", { type: "password", autocomplete: "off", "aria-label": "Token", placeholder: "Token", required: true });
  const enter = (event) => { event.preventDefault(); sessionStorage.setItem(TOKEN_KEY, field.value.trim()); location.reload(); };
  const leave = async () => { if (token()) sessionStorage.removeItem(TOKEN_KEY); else await sent("POST", "/logout", {}).catch(showError); location.reload(); };
  const out = () => el("button", { type: "button", onclick: leave }, "Log out");
  if (token()) place.append(out());
  else login.then(({ realms, name, who }) => place.append(...(name ? [el("span", { class: "who", title: who }, name), out()]
    : [el("details", { class: "login" }, el("summary", {}, "Log in"), el("div", {}, ways(realms), el("form", { onsubmit: enter }, field, el("button", {}, realms.length ? "Use a token" : "Log in"))))])));
  return place;
}

async function refusal(answer, url) {
  // If so, the login was valid when the page was loaded, and has expired or was ended in another tab.
  const ended = answer.status === 401 && !token() && (await login).name;
  const text = ended ? "You are no longer logged in. Load the page again, and log in." : (await answer.json().catch(() => ({}))).description;
  return Object.assign(new Error(text ?? `${url} answered ${answer.status}`), { status: answer.status });
}

/**
 * Return the JSON at an address; while the server is still reading it, retry as the response says, for a minute.
 * @param {string} url
 * @returns {Promise<any>}
 */
export async function fetched(url) {
  for (let left = 60; ; left--) {
    const answer = await fetch(url, { headers: bearing() });
    if (answer.ok) return answer.json();
    const again = Number(answer.headers.get("Retry-After"));
    if (![422, 503].includes(answer.status) || !again || !left) throw await refusal(answer, url);
    await new Promise((done) => { setTimeout(done, again * 1000); });
  }
}

/**
 * Send a request that writes; for a logged-in person, it carries the CSRF token, which only our own pages know.
 * @param {"POST" | "PUT" | "DELETE" | "PATCH"} method
 * @param {string} url
 * @param {Object} [body]
 * @returns {Promise<any>}
 */
export async function sent(method, url, body) {
  const { csrf } = await login;
  const answer = await fetch(url, { method, headers: { ...bearing(), ...(csrf ? { "X-Headgate-CSRF": csrf } : {}), "Content-Type": "application/json" }, body: body === undefined ? undefined : JSON.stringify(body) });
  if (!answer.ok) throw await refusal(answer, url);
  return answer.status === 204 ? null : answer.json();
}

// Show that the content of the page cannot be loaded.
export function showError(error) {
  if ([...main.querySelectorAll(":scope > p.note.bad")].some((one) => one.firstChild?.nodeValue === error.message)) return; // already shown by another part of the page
  const note = el("p", { class: "note bad", role: "alert" }, error.message);
  main.append(note);
  if (error.status === 401) login.then(({ realms }) => note.append(...ways(realms).flatMap((one) => [" ", one])));
}

/**
 * The appearance of a result.
 * @param {?string} [result]
 * @returns {"good" | "bad" | "mute" | "busy"}
 */
export function look(result) {
  if (result === "SUCCESS") return "good";
  if (result === null || result === undefined) return "busy";
  return ["SKIPPED", "CANCELED", "DEQUEUED", "NO_JOBS"].includes(result) ? "mute" : "bad";
}

const MARKS = { good: "✔", bad: "✘", mute: "–", busy: "▶" };
export const word = (result) => el("span", { class: `result ${look(result)}` }, `${MARKS[look(result)]} ${result ?? "running"}`);

/**
 * A duration in words; "" for none.
 * @param {?number} [ms]
 * @returns {string}
 */
export function took(ms) {
  if (ms === null || ms === undefined) return "";
  const s = Math.max(0, Math.floor(ms / 1000)), two = (n) => String(n).padStart(2, "0");
  return s < 60 ? `${s}s` : s < 3600 ? `${Math.floor(s / 60)}m ${two(s % 60)}s` : `${Math.floor(s / 3600)}h ${two(Math.floor(s / 60) % 60)}m`;
}

/**
 * Parse a time of the API, which is in UTC without a zone.
 * @param {?string} text
 * @returns {?Date}
 */
export const instant = (text) => (text ? new Date(`${text}Z`) : null);
const PLAIN = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
export const when = (text) => (text ? el("time", { datetime: `${text}Z`, title: `${text} UTC` }, PLAIN.format(instant(text))) : "");
// A time, shown as the time that has passed since, which `live.js` updates; the title shows the time itself.
export function since(ms) {
  if (!ms) return "";
  const at = new Date(ms);
  return el("time", { datetime: at.toISOString(), "data-at": ms, title: PLAIN.format(at) }, PLAIN.format(at));
}
export const passed = (text) => (text ? since(+instant(text)) : "");

// A button that copies a string, and confirms that.
export function copy(text, name) {
  const node = el("button", { type: "button", class: "copy act", "aria-label": `Copy ${name}`, title: `Copy ${name}`, onclick: async () => {
    await navigator.clipboard.writeText(text);
    node.textContent = "Copied";
    setTimeout(() => { node.textContent = "Copy"; }, 2000);
  } }, "Copy");
  return node;
}

export const short = (project) => project.split("/").slice(1).join("/");
export const link = (page, id, text) => el("a", { href: `/t/${encodeURIComponent(tenant)}/${page}/${id.split("/").map(encodeURIComponent).join("/")}` }, text);

// The address of the page about a change.
export const address = (ref) => `/t/${encodeURIComponent(tenant)}/change?${new URLSearchParams({ project: ref.project_canonical, change: `${ref.branch}/${ref.change ?? ref.topic}` })}`;
export const about = (ref) => el("span", {}, el("a", { href: address(ref) }, ref.subject || ref.id), el("span", { class: "small under" }, `${ref.project} · ${ref.id} · ${ref.branch}`));

// A reason without the name of the change, where it is clear which change it is about.
export const ofIt = (ref, line) => (line.startsWith(`${ref.key} `) ? `it${line.slice(ref.key.length)}` : line);

// The people who wrote, proposed and approved a change.
export const people = (ref) => [["Author", ref.author], ["Proposed by", ref.proposers.join(", ")], ["Approved by", ref.approvers.join(", ")]];

// An untrusted address: a link only if following it can do no harm.
export function outside(url, text) {
  // Artifacts and changes name addresses that a job or a proposer
  // wrote: `javascript:` would run with the viewer's login.
  const safe = url && (/^https?:\/\//i.test(url) || (url.startsWith("/") && !url.startsWith("//")));
  return safe ? el("a", { href: url, rel: "noreferrer" }, text) : el("span", {}, text);
}

// A string with its addresses as links.
const ADDRESS = /https?:\/\/[^\s<>"'`]+[^\s<>"'`.,;:!?)\]}]/g;
export function linked(text) {
  const found = [];
  let from = 0;
  for (const { 0: url, index } of text.matchAll(ADDRESS)) {
    found.push(text.slice(from, index), outside(url, url));
    from = index + url.length;
  }
  return [...found, text.slice(from)];
}

export const facts = (rows) => el("dl", {}, rows.filter(([, v]) => v !== null && v !== undefined && v !== "").map(([k, v]) => [el("dt", {}, k), el("dd", {}, v)]));
// On small screens, a row of several columns becomes a paragraph, in which the column's name precedes each cell.
const WIDE_COLUMNS = 3;
export const table = (names, rows, empty) => el("div", { class: "tablewrap", tabindex: 0, role: "group", "aria-label": "Table" }, el("table", { role: "table", class: names.length >= WIDE_COLUMNS ? "many" : null },
  el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, names.map((name) => el("th", { scope: "col", role: "columnheader" }, name)))),
  el("tbody", { role: "rowgroup" }, rows.length ? rows.map((cells) => el("tr", { role: "row" }, cells.map((cell, n) => el("td", { role: "cell", "data-of": n && names[n] ? names[n] : null }, cell)))) : el("tr", { role: "row" }, el("td", { role: "cell", colspan: names.length, class: "empty" }, empty)))));
