"""The scenarios of `headgate demo`."""
