"""Keys of projects, and what they encrypt."""
