"""Where the machines of jobs come from."""
