"""Print the document as docs/openapi.json has it: `python -m mainspring.api.openapi > docs/openapi.json`."""

from __future__ import annotations

import sys

from mainspring.api.openapi.document import text
from mainspring.api.rows import ROWS

if __name__ == "__main__":
    sys.stdout.write(text(ROWS))
