"""What a schema refusal of `apply` means in the words of the file that was applied. Pure.

The services name a place in the request (`body.policies[0].spec`); a person wrote a policy with a
kind and a name, and wants to know what could stand there.
"""

import re
from typing import Any

from contracts.description import DOCUMENTS, schema

Schema = dict[str, Any]
_PLACE = re.compile(r" - at `body\.policies\[(\d+)\]([^`]*)`")
_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
"""Of a place: a field, an item of a list, or `[...]`: a value of a map."""


def in_words_of_file(message: str, policies: list[dict[str, Any]]) -> str:
    """The message with `policy N, kind name:` in front (N from 1), and the kinds or fields that are
    known where one is not; a message that names no place in `policies` is returned as it is."""
    found = _PLACE.search(message)
    if found is None or int(found[1]) >= len(policies):
        return message
    number, place = int(found[1]), found[2]
    policy = policies[number]
    kind, name = policy.get("kind", "?"), policy.get("name", "?")
    where = f" - at `{place.lstrip('.')}`" if place else ""
    said = message[: found.start()].removeprefix("apply: ")
    text = said + where + message[found.end() :]
    return f"policy {number + 1}, {kind} {name}: {text}{_known(text, str(kind), place)}"


def _known(text: str, kind: str, place: str) -> str:
    whole = schema(DOCUMENTS["policy"])
    kinds: dict[str, str] = whole["discriminator"]["mapping"]
    if place == ".kind" or "field `kind`" in text:
        return f"; the kinds: {', '.join(kinds)}"
    if "unknown field" not in text or kind not in kinds:
        return ""
    here: Schema = {"$ref": kinds[kind]}
    for field, item in _STEP.findall(place):
        here = _resolved(here, whole)
        inner = here.get("items") if item.isdecimal() else here.get("additionalProperties")
        here = here.get("properties", {}).get(field, {}) if field else inner or {}
    fields = ", ".join(_resolved(here, whole).get("properties", {}))
    return f"; the fields here: {fields}" if fields else ""


def _resolved(part: Schema, whole: Schema) -> Schema:
    reference = part.get("$ref")
    if reference is None:
        return part
    resolved: Schema = whole["$defs"][reference.rpartition("/")[2]]
    return resolved
