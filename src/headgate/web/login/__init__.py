"""Logging in to the pages: with an OpenID provider, for as long as a cookie and the store say."""
