"""Drive podman: its containers are machines, on the machine that the launcher itself is on."""
