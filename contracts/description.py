"""What `describe` answers, made from the method rows: the socket documents itself.

The same text, written to `contracts/schemas/` and at a release to `contracts/released/`, is what
evolution checks compare. Holds no I/O.
"""

import functools
from types import ModuleType
from typing import Any

import msgspec

from contracts import limits
from contracts.errors import ERRORS
from contracts.features import ViewHeader
from contracts.limits import PROTOCOL_VERSION
from contracts.methods import METHODS, Method
from contracts.pack import Manifest
from contracts.policies import Policy
from contracts.program import Program
from contracts.service import BudgetRow, Description, ErrorDescription, MethodRow
from contracts.types import UNSET, Scalar

DOCUMENTS: dict[str, Any] = {
    "manifest": Manifest,
    "policy": Policy,
    "program": Program,
    "view_header": ViewHeader,
}
"""Files that users write or keep: a newer mesh must still read them."""


@functools.lru_cache(maxsize=16)
def describe(service: str, instance: str = "") -> Description:
    """Everything that a client may know of a service; `instance` is who answers."""
    return Description(
        service=service,
        instance=instance,
        protocol_version=PROTOCOL_VERSION,
        methods={name: _method(row) for name, row in METHODS[service].items()},
        errors={
            row.name: ErrorDescription(code=row.code, meaning=row.meaning, retryable=row.retryable)
            for row in ERRORS.values()
        },
        limits=named_limits(limits),
    )


def schema(contract: Any) -> dict[str, Any]:
    """The self-contained JSON Schema (2020-12) of a contract's type."""
    return msgspec.json.schema(contract)


def document_schemas() -> dict[str, Any]:
    """The schemas of `DOCUMENTS` by name."""
    return {name: schema(contract) for name, contract in DOCUMENTS.items()}


def named_limits(module: ModuleType) -> dict[str, Scalar]:
    """The public lower-case numbers of a limits module, in its own order."""
    return {
        name: value
        for name, value in vars(module).items()
        if name.islower() and not name.startswith("_") and isinstance(value, int | float)
    }


def _method(row: Method) -> MethodRow:
    return MethodRow(
        request=schema(row.request),
        response=schema(row.response),
        item=UNSET if row.item is None else schema(row.item),
        errors=list(row.all_errors),
        budget=BudgetRow(p99_ms=row.budget.p99_ms, timeout_ms=row.budget.timeout_ms),
        idempotent=row.idempotent,
        streaming=row.item is not None,
    )
