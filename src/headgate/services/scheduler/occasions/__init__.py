"""Messages and changes of objects that start pipelines; each connection is watched by one scheduler, as forges are."""
