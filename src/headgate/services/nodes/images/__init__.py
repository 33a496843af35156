"""Upload images that jobs build to where machines are made from them."""
