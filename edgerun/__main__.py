"""``python -m edgerun``: the same as the ``edgerun`` script."""

import sys

from edgerun.cli import main

if __name__ == "__main__":
    sys.exit(main())
