"""Test Headgate, and programs built on it: what both need is shipped with the product."""
