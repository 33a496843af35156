import { api, el, main, nav, passed, table } from "./page.js";
import { watch } from "./live.js";
nav("actions", "Manual actions");
const MANY = 200, body = el("div");
const who = (a) => (a.authenticator ? `${a.who} (${a.authenticator})` : a.who);
main.append(el("h1", {}, "Manual actions"), body);
watch(`${api}/actions?limit=${MANY}`, body, (found) => table(["When", "Who", "From", "Action", "Subject", "Reason", "Outcome"], found.map((a) => [passed(a.time), who(a), a.origin, a.verb, a.subject, a.reason, a.outcome || "unknown yet"]), "There are no recorded actions yet."), 10_000);
