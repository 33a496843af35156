import { el, fetched } from "./common.js";
const found = await fetched("/api/tenants");
document.getElementById("main").append(el("h1", {}, "Tenants"),
  ...found.map(({ name }) => el("p", {}, el("a", { href: `/t/${encodeURIComponent(name)}/status` }, name))));
