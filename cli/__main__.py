"""Run the command line as ``python -m draftsmith.cli``."""

from __future__ import annotations

import sys

from .main import run

sys.exit(run())
