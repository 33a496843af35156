"""Figures of this machine and this process: for people who watch, and for who must not do too much."""
