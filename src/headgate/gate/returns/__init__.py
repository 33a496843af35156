"""What a job returned, from bytes that anybody may have written to values that nobody checks again."""
