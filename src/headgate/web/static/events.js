import { api, passed } from "./page.js";
import { rows } from "./rows.js";
rows({ page: "events", title: "System events", urls: `${api}/system-events?limit=1000`, every: 30_000, empty: "There are no events of this tenant yet.",
  intro: "When a new configuration came into force, and when somebody requested to read it again.", heads: ["When", "Kind", "Description"],
  rows: (found) => found.map((one) => [`${one.event_type} ${one.description}`, () => [passed(one.event_time), one.event_type, one.description]]) });
