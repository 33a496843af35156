"""The operator's file: tenants, their projects, global semaphores, who may do what."""
