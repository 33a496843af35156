"""A Gitea on this machine: a real HTTP server with real git repositories behind it."""
