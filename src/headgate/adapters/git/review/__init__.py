"""What people look at and say of changes of plain git: differences, and remarks."""
