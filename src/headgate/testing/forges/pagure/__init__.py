"""A stand-in for Pagure: a real HTTP server with real git repositories behind it."""
