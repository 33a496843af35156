"""Let items into their queues, bring them up to date, land them, and let them leave."""
