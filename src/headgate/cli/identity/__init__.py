"""Determine whom the servers admit, and what commands show to prove who calls."""
