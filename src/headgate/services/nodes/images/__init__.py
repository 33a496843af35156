"""Images that jobs build, uploaded to where machines are made from them."""
