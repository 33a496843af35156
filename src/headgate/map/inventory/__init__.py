"""Where the inventory keeps things."""
