"""A script that fails without its secret (test_secrets.py)."""

import os
import sys

sys.exit(0 if os.environ.get("P", "").startswith("hunter") else 1)
