"""The contract that every home begins with, as one page: business, technical, operational. Pure.

Made from the same rows as `describe`. A home's own page (`services/control_plane/home_page.py`)
puts its policies, models and views in their places.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from contracts.description import describe
from contracts.errors import COMMON
from contracts.infrastructure import BUILT_IN, FIELDS, Resource, terms_of
from contracts.methods import EVERY_SERVICE, SERVICES
from contracts.policies import InfrastructureSpec, ServiceName, SlaSpec
from contracts.stages import BUDGET_MS

EVERY = "*"
"""The name of a policy for every model."""
Schema = dict[str, Any]
Rows = dict[str, dict[str, dict[str, Any]]]
"""Service → method → its row as `describe` tells it."""


def page(services: tuple[str, ...] = SERVICES) -> dict[str, Any]:
    """The built-in page as builtin values, and its digest."""
    content = built_in(services)
    return {"digest": digest_of(content), **content}


def built_in(services: tuple[str, ...] = SERVICES) -> dict[str, Any]:
    """What holds without a policy, model or view. What every service answers stands once, as
    `every_service`."""
    described = {name: msgspec.to_builtins(describe(name)) for name in services}
    first = next(iter(described.values()))
    common = [row.name for row in EVERY_SERVICE]
    methods = {"every_service": {name: first["methods"][name] for name in common}} | {
        service: {name: row for name, row in one["methods"].items() if name not in common}
        for service, one in described.items()
    }
    return {
        "protocol_version": first["protocol_version"],
        "business": {"sla": {EVERY: promises(SlaSpec())}, "stage_budgets_ms": BUDGET_MS},
        "technical": {
            "common_errors": list(COMMON),
            "services": _each(methods, _method),
            "types": _types(methods),
            "errors": first["errors"],
        },
        "operational": {
            "budgets": _each(methods, _budget),
            "processes": {name: process(name) for name in BUILT_IN if name in services},
            "limits": first["limits"],
        },
    }


def promises(spec: SlaSpec) -> dict[str, Any]:
    """What an `sla` policy promises to callers. Who signs is no promise; what processes may use
    stands in the operational part."""
    shown: dict[str, Any] = msgspec.to_builtins(spec)
    return {
        name: value for name, value in shown.items() if name not in ("infrastructure", "sign_offs")
    }


def process(
    service: ServiceName,
    spec: InfrastructureSpec | None = None,
    home: Mapping[Resource, float] = {},
) -> dict[str, Any]:
    """What each process of a service may use, and what happens when it is too much."""
    terms = terms_of(service, spec, home)
    limits = {FIELDS[resource]: limit for resource, limit in terms.limits.items()}
    return {
        **limits,
        "alarm_share": terms.alarm_share,
        "over_share": terms.over_share,
        "memory_reaction": terms.memory_reaction,
        "shed_classes": list(terms.shed_classes),
    }


def digest_of(content: dict[str, Any]) -> str:
    """sha256 over the canonical JSON (sorted keys, no spaces): what a sign-off names."""
    encoded = msgspec.json.encode(content, order="sorted")
    return "sha256:" + hashlib.sha256(encoded).hexdigest()


def fields(schema: Schema) -> dict[str, str]:
    """Each field of a struct's schema and its type in words; an optional one's name ends in ?."""
    required = schema.get("required", [])
    if "prefixItems" in schema:
        return {str(place): words(item) for place, item in enumerate(schema["prefixItems"])}
    return {
        name + ("" if name in required else "?"): words(field)
        for name, field in schema.get("properties", {}).items()
    }


def words(schema: Schema) -> str:
    """A type in words: `text 1…128`, `list ≤ 64 of Tensor`, `"a" | "b"`."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " | ".join(words(one) for one in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(str(value) for value in schema["enum"])
    match schema.get("type"):
        case "array":
            of = words(schema["items"]) if schema.get("items") else "any"
            return f"list{_range(schema, 'Items')} of {of}"
        case "object":
            return f"map to {words(schema.get('additionalProperties') or {})}"
        case "string":
            kind = "bytes" if "contentEncoding" in schema else "text"
            pattern = f" {schema['pattern']}" if "pattern" in schema else ""
            return f"{kind}{_range(schema, 'Length')}{pattern}"
        case None:
            return "any"
        case kind:
            return f"{kind}{_bounds(schema)}"


def _range(schema: Schema, what: str) -> str:
    low, high = schema.get(f"min{what}"), schema.get(f"max{what}")
    if low is None and high is None:
        return ""
    return f" ≤ {high}" if low is None else f" {low}…{'' if high is None else high}"


def _bounds(schema: Schema) -> str:
    signs = (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"))
    return "".join(f" {sign} {schema[name]:g}" for name, sign in signs if name in schema)


def _each(methods: Rows, view: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    return {
        service: {name: view(row) for name, row in rows.items()}
        for service, rows in methods.items()
    }


def _method(row: dict[str, Any]) -> dict[str, Any]:
    """What is said; errors beyond the common ones."""
    return {
        "request": fields(_root(row["request"])),
        "response": fields(_root(row["response"])),
        "item": fields(_root(row["item"])) if "item" in row else None,
        "errors": [name for name in row["errors"] if name not in COMMON],
    }


def _budget(row: dict[str, Any]) -> dict[str, Any]:
    return {**row["budget"], "idempotent": row["idempotent"], "streaming": row["streaming"]}


def _types(methods: Rows) -> dict[str, dict[str, str]]:
    """The structs inside requests, responses and items, by name."""
    roots = [
        row[part]
        for rows in methods.values()
        for row in rows.values()
        for part in ("request", "response", "item")
        if part in row
    ]
    outer = {root.get("$ref", "").rpartition("/")[2] for root in roots}
    nested = {
        name: fields(schema)
        for root in roots
        for name, schema in root.get("$defs", {}).items()
        if name not in outer
    }
    return dict(sorted(nested.items()))


def _root(schema: Schema) -> Schema:
    reference = schema.get("$ref")
    if reference is None:
        return schema
    root: Schema = schema["$defs"][reference.rpartition("/")[2]]
    return root
