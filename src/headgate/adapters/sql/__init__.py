"""The history of builds in an SQL database."""
