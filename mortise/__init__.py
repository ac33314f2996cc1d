"""Mortise from Python: `Client`, `AsyncClient`, and the error vocabulary as exceptions.

An error can be named either way: `mortise.Overloaded` or `mortise.OVERLOADED`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mortise.async_client import AsyncClient
    from mortise.client import Client
    from mortise.errors import MortiseError
    from mortise.result import Record, Result
    from mortise.retry import MeshDown

__all__ = ["AsyncClient", "Client", "MeshDown", "MortiseError", "Record", "Result"]

_PLACES = {
    "AsyncClient": "mortise.async_client",
    "Client": "mortise.client",
    "MeshDown": "mortise.retry",
    "MortiseError": "mortise.errors",
    "Record": "mortise.result",
    "Result": "mortise.result",
}


def __getattr__(name: str) -> Any:
    """Import on first use: the pytest plugin loads this package in every test run."""
    import importlib

    if name in _PLACES:
        return getattr(importlib.import_module(_PLACES[name]), name)
    if not name.startswith("_") and name[:1].isupper():
        generated = importlib.import_module("mortise.generated")
        for kind in generated.ERRORS.values():
            if name in (kind.name, kind.__name__):
                return kind
    raise AttributeError(f"module 'mortise' has no attribute {name!r}")
