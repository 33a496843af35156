"""The one door to what a job can write."""
