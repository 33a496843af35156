"""Measure a day at the size of OpenStack: `make bench day`."""
