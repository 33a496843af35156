"""Read the configuration language: turn text into checked records. Pure; every error names project, branch, file and
line."""
