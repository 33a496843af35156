"""What people see and say of changes of plain git."""
