"""Drive forges: each driver is a package beside this one, and a row in `registry`."""
