"""As `zuul_console`, on machines of Windows."""

from ansible.plugins.loader import action_loader

ActionModule = action_loader.get("zuul_console", class_only=True)
