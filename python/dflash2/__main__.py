"""`python -m dflash2`."""

import sys

from dflash2.cli import main

sys.exit(main())
