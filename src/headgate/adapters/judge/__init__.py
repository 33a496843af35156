"""Proposed configuration judged apart from the loop that serves everybody."""
