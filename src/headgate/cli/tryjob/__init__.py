"""`headgate try`: run one job now, on files as they are."""
