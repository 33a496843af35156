"""Limit what a server grants to those who connect: connections, time, and the form of requests."""
