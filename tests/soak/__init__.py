"""Many changes through one gate: nothing grows with their number but what is to be kept."""
