"""`headgate try`: one job, now, on files as they are."""
