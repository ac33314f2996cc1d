"""Does one JSON Schema accept everything that another one allows? Pure.

Only for the schemas that msgspec makes of our types: references, enums, unions, numbers, strings,
arrays and objects, none of them recursive. A keyword that it does not know may not change.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Schema = dict[str, Any]

NESTING_MAX = 64
"""Our types are not recursive; the deepest has 9 levels."""
_LOWER = frozenset({"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"})
_UPPER = frozenset({"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"})
_WORDS = frozenset({"title", "description", "default", "$defs", "discriminator"})
"""What constrains nothing."""
_STRUCTURE = _WORDS | {
    "type", "enum", "anyOf", "properties", "required", "additionalProperties", "propertyNames",
    "items", "prefixItems",
}  # fmt: skip
"""What is compared part by part; any other keyword must be a bound, or stay as it is."""


def refusals(sent: Schema, read: Schema, *, answer: bool = False) -> list[str]:
    """Why a reader of `read` may refuse or miss what a writer of `sent` writes; empty: it cannot.

    `answer` says that the reader ignores fields it does not know, as clients do.
    """
    comparison = _Comparison(sent.get("$defs", {}), read.get("$defs", {}), answer)
    return list(dict.fromkeys(comparison.refusals(sent, read, "", NESTING_MAX)))


@dataclass(frozen=True, slots=True)
class _Comparison:
    sent_types: dict[str, Schema]
    read_types: dict[str, Schema]
    answer: bool

    def refusals(self, sent: Schema, read: Schema, where: str, depth: int) -> Iterator[str]:
        """The reasons below one place of the two schemas."""
        assert depth, "a contract's type is not recursive"
        sent, read = _resolve(sent, self.sent_types), _resolve(read, self.read_types)
        if not read.keys() - _WORDS:
            return
        alternatives = read.get("anyOf")
        if "anyOf" in sent:
            for one in sent["anyOf"]:
                yield from self.refusals(one, read, where, depth - 1)
        elif alternatives is not None:
            yield from self._closest(sent, alternatives, where, depth - 1)
        elif "enum" in read:
            yield from _enum(sent, read, where)
        else:
            yield from self._typed(sent, read, where, depth)

    def _closest(self, sent: Schema, read: list[Schema], where: str, depth: int) -> Iterator[str]:
        """No reason when any alternative accepts it, else those of the alternative like it."""
        tried = [list(self.refusals(sent, one, where, depth)) for one in read]
        if all(tried):
            name = _resolve(sent, self.sent_types).get("title")
            same = [
                reasons
                for reasons, one in zip(tried, read, strict=True)
                if name and _resolve(one, self.read_types).get("title") == name
            ]
            yield from same[0] if same else [f"{where or 'value'}: {_name(sent)} is not accepted"]

    def _typed(self, sent: Schema, read: Schema, where: str, depth: int) -> Iterator[str]:
        if not _type_accepts(_types(sent), _types(read)):
            yield f"{where or 'value'}: {_name(sent)} is not accepted as {_name(read)}"
            return
        yield from self._bounds(sent, read, where or "value")
        if "properties" in read or "additionalProperties" in read:
            yield from self._object(sent, read, where, depth)
        if "items" in read or "prefixItems" in read:
            yield from self._array(sent, read, where, depth)

    def _object(self, sent: Schema, read: Schema, where: str, depth: int) -> Iterator[str]:
        old, new = sent.get("properties", {}), read.get("properties", {})
        for name, field in old.items():
            at = f"{where}.{name}".lstrip(".")
            if name in new:
                yield from self.refusals(field, new[name], at, depth - 1)
            elif not self.answer:
                yield f"{at}: field removed"
        for name in new if self.answer else ():
            if name not in old:
                yield f"{where}.{name}".lstrip(".") + ": field removed"
        for name in read.get("required", ()):
            at = f"{where}.{name}".lstrip(".")
            if name in sent.get("required", ()) or (self.answer and name not in old):
                continue
            yield f"{at}: may be absent now" if self.answer else f"{at}: required now"
        for part in ("propertyNames", "additionalProperties"):
            if isinstance(read.get(part), dict) and not old:
                at = f"{where}.*" if part == "additionalProperties" else f"{where} (keys)"
                yield from self.refusals(_part(sent, part), read[part], at, depth - 1)

    def _array(self, sent: Schema, read: Schema, where: str, depth: int) -> Iterator[str]:
        pairs = zip(sent.get("prefixItems", []), read.get("prefixItems", []), strict=False)
        for index, (old, new) in enumerate(pairs):
            yield from self.refusals(old, new, f"{where}[{index}]", depth - 1)
        before, after = self._in_time(sent, read)
        if len(after.get("prefixItems", [])) < len(before.get("prefixItems", [])):
            yield f"{where or 'value'}: has lost its last place"
        if isinstance(read.get("items"), dict):
            yield from self.refusals(_part(sent, "items"), read["items"], f"{where}[]", depth - 1)

    def _bounds(self, sent: Schema, read: Schema, where: str) -> Iterator[str]:
        """The bounds of the reader that the writer does not keep."""
        before, after = self._in_time(sent, read)
        for name in sorted(read.keys() - _STRUCTURE):
            if not _keeps(sent.get(name), read[name], name, "enum" in sent):
                old, new = before.get(name, "absent"), after.get(name, "absent")
                yield f"{where}: {name} was {old}, is {new}"

    def _in_time(self, sent: Schema, read: Schema) -> tuple[Schema, Schema]:
        """The older and the newer of the two: a request's writer is old, an answer's is new."""
        return (read, sent) if self.answer else (sent, read)


def _resolve(schema: Schema, types: dict[str, Schema]) -> Schema:
    reference = schema.get("$ref")
    return schema if reference is None else types[reference.rpartition("/")[2]]


def _part(schema: Schema, name: str) -> Schema:
    part = schema.get(name, {})
    return part if isinstance(part, dict) else {}


def _types(schema: Schema) -> set[str]:
    kinds = schema.get("type", [])
    if not kinds and "enum" in schema:
        kinds = ["string" if isinstance(value, str) else "integer" for value in schema["enum"]]
    return {kinds} if isinstance(kinds, str) else set(kinds)


def _type_accepts(sent: set[str], read: set[str]) -> bool:
    widened = read | ({"integer"} if "number" in read else set())
    return not read or (bool(sent) and sent <= widened)


def _name(schema: Schema) -> str:
    return str(schema.get("title") or "|".join(sorted(_types(schema))) or "any value")


def _enum(sent: Schema, read: Schema, where: str) -> Iterator[str]:
    if "enum" not in sent:
        yield f"{where or 'value'}: narrowed to {', '.join(map(str, read['enum']))}"
        return
    for value in sent["enum"]:
        if value not in read["enum"]:
            yield f"{where or 'value'}: {value!r} is not accepted"


def _keeps(sent: Any, read: Any, name: str, is_enum: bool) -> bool:
    """Whether what is written within the bound `sent` (None: unbounded) stays within `read`."""
    if name in _LOWER:
        return sent is not None and bool(sent >= read)
    if name in _UPPER:
        return sent is not None and bool(sent <= read)
    return is_enum or bool(sent == read)
