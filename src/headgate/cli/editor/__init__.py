"""`headgate lsp`: what editors ask while a configuration is written."""
