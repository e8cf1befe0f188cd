"""Lightning's log writes to the standard error that it finds when it is first imported.

The command line imports it late, which in tests would be one test's captured stream, closed in all later ones.
"""

from __future__ import annotations

from importlib import import_module

import_module("lightning.pytorch")
