"""Read the configuration language: turn text into checked records.

Pure. Every error names project, branch, file and line.
"""
