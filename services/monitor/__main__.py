"""`python -m services.monitor [monitor.key=value …]`."""

import sys

from services.monitor.service import main

if __name__ == "__main__":
    sys.exit(main())
