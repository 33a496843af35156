"""The driver for Pagure, against its stand-in."""
