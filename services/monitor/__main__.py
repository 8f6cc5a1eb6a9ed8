"""`python -m seedbed.services.monitor [monitor.key=value …]`."""

import sys

from seedbed.services.monitor.service import main

if __name__ == "__main__":
    sys.exit(main())
