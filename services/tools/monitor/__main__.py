"""`python -m seedbed.services.tools.monitor [monitor.key=value …]`."""

import sys

from seedbed.services.tools.monitor.service import main

if __name__ == "__main__":
    sys.exit(main())
