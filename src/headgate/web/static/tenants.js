import { el, fetched, main, nav, table, trouble } from "./page.js";
nav("", "Tenants");
try {
  const found = await fetched("/api/tenants");
  main.append(el("h1", {}, "Tenants"), table(["Tenant", "Projects", "Items in queues"], found.map((t) => [el("a", { href: `/t/${encodeURIComponent(t.name)}/status` }, t.name), String(t.projects), String(t.queue)]), "There is no tenant: name one in the tenant file."));
} catch (error) { trouble(error); }
