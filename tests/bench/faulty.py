"""A daemon with a planted fault: `python -m tests.bench.faulty FAULT [FLAG VALUE]...`."""

import sys

from ignisd.cli import main
from tests.mutants import MUTANTS

if __name__ == "__main__":
    with MUTANTS[sys.argv[1]].plant():
        sys.exit(main(sys.argv[2:]))
