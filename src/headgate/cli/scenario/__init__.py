"""What `headgate demo` plays."""
