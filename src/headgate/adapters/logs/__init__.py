"""Keep logs and artifacts: store, upload, read and remove them."""
