"""Run real servers for tests, from Debian's packages: on free ports of 127.0.0.1, stopped by their process ids."""
