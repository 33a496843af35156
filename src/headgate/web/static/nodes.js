import { api, el, fetched, link, passed, sent, tenant } from "./page.js";
import { button } from "./acts.js";
import { rows } from "./rows.js";
const LOOK = { "in-use": "good", ready: "good", building: "busy", requested: "busy", failed: "bad", hold: "busy" };
const BUILD = /^(.*), build (\w+)$/;
const comment = (text) => { const found = BUILD.exec(text ?? ""); return found ? link("build", found[2], found[1]) : text ?? ""; };
const change = (n, state, label, what) => button({ permission: "modify-node", label, name: `${label} ${n.id}`, title: `${label} machine ${n.id}?`, what, send: () => sent("PUT", `${api}/nodes/${encodeURIComponent(n.uuid)}`, { state }) });
const { info } = await fetched("/api/info").catch(() => ({ info: { beside: [] } }));
const counted = (found) => Object.entries(found.reduce((sums, n) => ({ ...sums, [n.state]: (sums[n.state] ?? 0) + 1 }), {})).sort().map(([state, n]) => `${n.toLocaleString()} ${state}`).join(" · ");
rows({ page: "nodes", title: "Machines", urls: `${api}/nodes`, every: 10_000, empty: "This tenant has no machines at the moment.",
  intro: ["Machines that builds of this tenant use, machines that were made for them, and machines of the inventory that its labels match. For builds that wait for machines, see ", el("a", { href: `/t/${encodeURIComponent(tenant)}/requests` }, "requests"), ".", ...(info.beside.includes("inventory") ? [" All machines are in the ", el("a", { href: "/inventory/" }, "inventory"), "."] : [])],
  heads: ["Machine", "State", "Since", "Labels", "Provider", "Used by", ""],
  above: (found) => (found.length ? el("p", { class: "small" }, counted(found)) : ""),
  rows: (found) => found.map((n) => [`${n.id} ${n.uuid} ${n.state} ${n.type.join(" ")} ${n.provider ?? ""} ${n.comment ?? ""}`, () => [
    [n.id, n.public_ipv4 || n.private_ipv4 || n.interface_ip ? el("span", { class: "small under" }, n.public_ipv4 || n.private_ipv4 || n.interface_ip) : ""],
    [el("span", { class: `result ${LOOK[n.state] ?? "mute"}` }, n.state), n.why ? el("span", { class: "small under" }, n.why) : ""], passed(n.state_time), n.type.join(", "), (n.provider ?? "").replaceAll("%2F", "/"), comment(n.comment),
    n.state === "hold" ? change(n, "used", "Release", "It is deleted, or becomes available to other builds. Nothing is tested again.") : ""]]) });
