"""The message API over HTTP; an application of its own."""
