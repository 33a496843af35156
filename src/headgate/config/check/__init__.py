"""Check a complete configuration: find its errors, trace them to their causes, and determine what a change affects."""
