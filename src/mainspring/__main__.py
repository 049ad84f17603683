"""`python -m mainspring` is the command line."""

import sys

from mainspring.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
