"""Read the operator's file: tenants, their projects, global semaphores, and who may do what."""
