"""Reviews of changes of plain git: differences, and remarks."""
