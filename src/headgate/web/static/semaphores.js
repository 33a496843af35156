import { api, el, link } from "./page.js";
import { rows } from "./rows.js";
const SHOWN = 20;
const holder = (one) => el("li", {}, one.buildset_uuid ? link("buildset", one.buildset_uuid, one.job_name) : one.job_name, one.ending ? el("span", { class: "small" }, " is ending") : "");
const full = (s) => s.holders.count >= s.max;
rows({ page: "semaphores", title: "Semaphores", urls: `${api}/semaphores`, empty: "No job of this tenant uses a semaphore.",
  intro: "A semaphore limits how many builds run concurrently. Holders in other tenants are only counted.",
  heads: ["Semaphore", "In use", "Held by"],
  rows: (found) => [...found].sort((a, b) => b.holders.count - a.holders.count || a.name.localeCompare(b.name)).map((s) => [`${s.name} ${s.holders.this_tenant.slice(0, SHOWN).map((one) => one.job_name).join(" ")}`, () => [
    [s.name, s.global ? el("span", { class: "small" }, " global") : ""], el("span", { class: `result ${full(s) ? "busy" : "mute"}` }, `${s.holders.count} of ${s.max}`),
    [el("ul", { class: "plain" }, s.holders.this_tenant.slice(0, SHOWN).map(holder)), s.holders.this_tenant.length > SHOWN ? el("span", { class: "small" }, `and ${s.holders.this_tenant.length - SHOWN} more`) : "", s.holders.other_tenants ? el("span", { class: "small" }, `${s.holders.other_tenants} in other tenants`) : ""]]]) });
