"""Regular expressions that RE2 does not know, matched in bounded time."""
