"""What forges say of changes, and what pipelines may ask of it: facts, and for each driver its keys with who asks."""
