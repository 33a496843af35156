"""Define the routes of the API and the pages, one module for each subject."""
