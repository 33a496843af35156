"""Show people changes of plain git, and record what they say about them."""
