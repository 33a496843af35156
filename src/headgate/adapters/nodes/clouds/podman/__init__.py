"""Containers of podman as machines, on the machine that the launcher itself is on."""
