"""Keep the history of builds in an SQL database."""
