"""Where `module:function` and `module:Class` of a configuration are looked for."""

import os
import sys


def look_for_modules_here() -> None:
    """Let them name what lies in the working directory; behind the packages installed, so that none is hidden."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)
