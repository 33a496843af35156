"""Data that jobs return: from bytes that anybody may have written to values that need no further check."""
