"""`python -m pgps` is `pgps`."""

import sys

from pgps.cli import main

if __name__ == "__main__":
    sys.exit(main())
