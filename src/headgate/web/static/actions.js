import { api, el, fetched, main, nav, table, trouble, when } from "./page.js";
nav("actions", "By hand");
try {
  const found = await fetched(`${api}/actions?limit=200`);
  const who = (a) => (a.authenticator ? `${a.who} (${a.authenticator})` : a.who);
  main.append(el("h1", {}, "Done by hand"), table(["When", "Who", "From", "What", "To", "Why", "What came of it"], found.map((a) => [when(a.time), who(a), a.origin, a.verb, a.subject, a.reason, a.outcome || "not known yet"]), "Nothing was done by hand yet."));
} catch (error) { trouble(error); }
