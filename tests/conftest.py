"""Property-based tests try the same examples each time: a change is judged by what it changes.

To look for new ones: `pytest --hypothesis-profile search`.
"""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None)
settings.load_profile("same")
