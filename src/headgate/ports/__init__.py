"""What the services need from the outside, as small protocols.  `adapters` has the real ones, `testing` the fakes."""
