"""Import of aiohttp's server without its client, for a process that seldom or never calls anybody over HTTP.

The package's `__init__` imports the client, which is 4 MB: its modules, and TLS contexts with the system's authorities.

Rule: nobody has to know. A module of the package is imported as ever, and the first use of a name that only `__init__`
gives (`aiohttp.ClientSession`) runs it. What this file does not foresee costs memory, and nothing else.
"""

import importlib
import importlib.metadata
import importlib.util
import sys
from typing import Any

_PACKAGE = "aiohttp"


def defer_http_client() -> None:
    """Defer aiohttp's `__init__` to the first use of a name of its own; nothing, where it is imported already."""
    spec = None if _PACKAGE in sys.modules else importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.loader is None:
        return
    loader, package = spec.loader, importlib.util.module_from_spec(spec)

    def find_name(name: str) -> Any:  # PEP 562
        if name.startswith("__"):  # questions of the import system, which `__init__` does not answer either
            raise AttributeError(name)
        if importlib.util.find_spec(f"{_PACKAGE}.{name}"):
            return importlib.import_module(f"{_PACKAGE}.{name}")
        del vars(package)["__getattr__"]
        loader.exec_module(package)
        return getattr(package, name)

    vars(package).update(__getattr__=find_name, __version__=importlib.metadata.version(_PACKAGE))
    sys.modules[_PACKAGE] = package
