"""Match, in bounded time, regular expressions that RE2 does not support."""
