"""Runs the command line: ``python -m tasks``."""

import sys

from tasks.cli import main

sys.exit(main())
