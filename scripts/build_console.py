"""A hook of the build: wheel and sdist carry the built console; who installs either needs no Node.js.

An editable install changes nothing: `make console` builds there, and without Node `/` says so.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ConsoleHook(BuildHookInterface):  # type: ignore[type-arg,misc]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        source, built = root / "console", root / "src" / "mainspring" / "api" / "static" / "manifest.json"
        if version == "editable" or not source.exists():  # an sdist has the result, and not the source
            return
        sources = [*source.glob("*.*"), *(path for path in (source / "src").rglob("*") if path.is_file())]
        if built.exists() and built.stat().st_mtime >= max(path.stat().st_mtime for path in sources):
            return
        if shutil.which("npm") is None:
            if not built.exists():
                raise RuntimeError("the console is not built, and there is no Node.js 20 to build it: install it first")
            return
        if not (source / "node_modules").exists():
            subprocess.run(["npm", "ci", "--ignore-scripts", "--no-fund", "--no-audit"], cwd=source, check=True)
        subprocess.run(["node", "build.mjs"], cwd=source, check=True)
