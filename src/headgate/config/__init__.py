"""The configuration language: text to checked records.  Pure; every error says project, branch, file and line."""
