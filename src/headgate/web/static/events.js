import { api, passed } from "./page.js";
import { rows } from "./rows.js";
rows({ page: "events", title: "System events", urls: `${api}/system-events?limit=1000`, every: 30_000, empty: "Nothing has happened to this tenant so far.",
  intro: "When another configuration came into force, and when somebody had it read anew.", heads: ["When", "Kind", "What"],
  rows: (found) => found.map((one) => [`${one.event_type} ${one.description}`, () => [passed(one.event_time), one.event_type, one.description]]) });
