import { el, fetched, main, nav, table } from "./page.js";
import { watch } from "./live.js";
nav("", "Tenants");
const body = el("div");
main.append(el("h1", {}, "Tenants"), body);
watch("/api/tenants", body, (found) => table(["Tenant", "Projects", "Items in queues"], found.map((t) => [el("a", { href: `/t/${encodeURIComponent(t.name)}/status` }, t.name), String(t.projects), String(t.queue)]), "There is no tenant that you may see. Log in, or ask the operator to add one to the tenant file."));

const beside = { inventory: ["/inventory/", "Inventory", "machines and other objects, with their leases"], queues: ["/queues/", "Message queues", "stored messages, lag, schedules and dead letters"] };
const { info } = await fetched("/api/info").catch(() => ({ info: { beside: [] } }));
const links = [["/api", "API", `all its paths${info.version ? `; this is Headgate ${info.version}` : ""}`], ...info.beside.map((name) => beside[name])].map(([place, name, what]) => el("li", {}, el("a", { href: place }, name), `: ${what}`));
main.append(el("h2", {}, "Other services"), el("ul", {}, ...links));
