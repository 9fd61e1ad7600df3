"""`python -m diagnose`: the same as the console command."""

import sys

from diagnose.commands.cli import main

if __name__ == "__main__":
    sys.exit(main())
