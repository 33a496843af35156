"""Side-by-side measurements: `make bench`."""
