"""`python -m ignisd` is the same as `ignisd`."""

import sys

from ignisd.cli import main

if __name__ == "__main__":
    sys.exit(main())
