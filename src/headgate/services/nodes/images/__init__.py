"""Images that jobs build: kept where machines are made of them."""
