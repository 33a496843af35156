"""Implement `headgate lsp`: answer editors while somebody writes a configuration."""
