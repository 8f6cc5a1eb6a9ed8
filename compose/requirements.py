"""What pip must install for seedbed and some of its extras, one requirement a line: `requirements.py [EXTRA…]`.

Images install this before the code is copied, so that a change of code installs nothing anew.
"""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(sys.argv[0]).parent / "pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]
print(*project["dependencies"], *(item for name in sys.argv[1:] for item in extras[name]), sep="\n")
