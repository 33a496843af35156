"""Provide `zuul_console` on Windows machines."""

from ansible.plugins.loader import action_loader

ActionModule = action_loader.get("zuul_console", class_only=True)
