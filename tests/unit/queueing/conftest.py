from __future__ import annotations

from hypothesis import settings

settings.register_profile("any machine", deadline=None)  # how long an example takes says nothing where many work
settings.load_profile("any machine")
