"""A daemon whose disk hangs once it serves: `stuck_files.py fetch|store [FLAG VALUE]...`."""

import sys
import time
from typing import NoReturn

from ignisd import cli, disk_tier
from ignisd.engine import files


def _hang(*_: object) -> NoReturn:
    while True:
        time.sleep(1)


if __name__ == "__main__":
    setattr(files, sys.argv.pop(1), _hang)
    disk_tier._STUCK_S = 0.5
    sys.exit(cli.main())
