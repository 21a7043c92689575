"""`python -m cflag` is the command `cflag`, for whoever has a Python and no PATH to its commands."""

import sys

from cflag.cli import main

sys.exit(main())
