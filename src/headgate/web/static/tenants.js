import { el, fetched, main, nav, table, trouble } from "./page.js";
nav("", "Tenants");
try {
  const found = await fetched("/api/tenants");
  main.append(el("h1", {}, "Tenants"), table(["Tenant", "Projects", "Items in queues"], found.map((t) => [el("a", { href: `/t/${encodeURIComponent(t.name)}/status` }, t.name), String(t.projects), String(t.queue)]), "There is no tenant: name one in the tenant file."));
} catch (error) { trouble(error); }

const beside = { inventory: ["/inventory/", "Inventory", "machines and other objects, with their leases"], queues: ["/queues/", "Message queues", "what is kept, lag, schedules and dead letters"] };
const { info } = await fetched("/api/info").catch(() => ({ info: { beside: [] } }));
const links = info.beside.map((name) => beside[name]).map(([place, name, what]) => el("li", {}, el("a", { href: place }, name), `: ${what}`));
if (links.length) main.append(el("h2", {}, "Also here"), el("ul", {}, ...links));
