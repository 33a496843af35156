"""Simulate the whole gate in virtual time, with the faults of processes, connections and people."""
