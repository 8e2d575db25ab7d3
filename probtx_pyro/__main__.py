"""``python -m probtx_pyro`` is ``probtx``."""

import sys

from probtx_pyro.cli import main

if __name__ == "__main__":
    sys.exit(main())
