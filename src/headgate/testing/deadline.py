"""Limit how long a test waits for what must come."""

from __future__ import annotations

DEADLINE_S = 180.0
"""Deadline for events that normally take a moment. Only failing tests reach it, on the busiest of machines, too."""
