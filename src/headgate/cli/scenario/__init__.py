"""Play the scenarios of `headgate demo`."""
