"""Messages and changes of objects that start pipelines: watched as forges are, one connection by one scheduler."""
