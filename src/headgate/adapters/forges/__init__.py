"""Drive forges: each driver is a package next to this one, and a row in `registry`."""
