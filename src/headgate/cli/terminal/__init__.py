"""Print styled lines, tables and live screens; this package also makes control characters in others' text harmless."""
