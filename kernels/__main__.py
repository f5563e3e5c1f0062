"""``python -m kernels``."""

import sys

from kernels.cli import main

if __name__ == "__main__":
    sys.exit(main())
