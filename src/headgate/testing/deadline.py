"""Limit how long a test waits for what must come."""

from __future__ import annotations

DEADLINE_S = 180.0
"""For whatever comes in a moment.  Only a test that fails takes so long: it is enough for the busiest of machines."""
