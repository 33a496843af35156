"""Declare what the services need from the outside, as small protocols; `adapters` and `testing` implement them."""
