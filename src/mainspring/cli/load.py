"""Load: import the application that a command names as `module:attribute`, from the working directory."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from types import ModuleType
from typing import Any

from mainspring.errors import MainspringError, ValidationError, shown
from mainspring.sdk.app import App


class NotImportable(MainspringError):
    """The application raises an exception when it is imported."""

    code = "not_importable"


def load_app(name: str) -> App:
    """The App of this name. Errors say what to do."""
    module_name, sign, attribute = name.partition(":")
    if not sign or not attribute or not all(part.isidentifier() for part in module_name.split(".")):
        raise ValidationError(f"app: {shown(name)} is not MODULE:ATTRIBUTE; write it as in shop.jobs:app", field="app")
    module = _import(module_name)
    try:
        found: Any = getattr(module, attribute)
    except AttributeError:
        apps = [f"{module_name}:{key}" for key, value in vars(module).items() if isinstance(value, App)]
        hint = f"there is {', '.join(apps)}" if apps else f"write `{attribute} = mainspring.App()` in it"
        raise ValidationError(f"app: {module_name} has no {attribute!r}; {hint}", field="app") from None
    if not isinstance(found, App):
        raise ValidationError(
            f"app: {name} is of type {type(found).__name__}; name a mainspring.App, such as `app = mainspring.App()`",
            field="app",
        )
    return found


def _import(name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(f"{missing}."):
            raise ValidationError(
                f"app: no module {missing!r} in {here} or among the installed packages; "
                "start this in the directory that holds it, or correct the name",
                field="app",
            ) from None
        raise NotImportable(f"{name} needs {missing!r}, which is not installed; install it") from error
    except MainspringError:
        raise
    except (Exception, SystemExit) as error:
        raise NotImportable(f"importing {name} failed with {_told(error)}; fix it and start again") from error


def _told(error: BaseException) -> str:
    """The error in one line, with the place in the application's code."""
    headline = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) or not frames:
        return f"{headline} ({getattr(error, 'filename', None)}:{getattr(error, 'lineno', None)})"
    return f"{headline} ({frames[-1].filename}:{frames[-1].lineno})"
