"""What a routing rule means, the slow and obvious way, and trees to try it on."""

from typing import Any

from hypothesis import strategies as st

from contracts.inference import InferenceRequest
from contracts.types import UNSET
from shared.rules_tree import (
    FIELDS,
    Affix,
    Comparison,
    Condition,
    Constant,
    Existence,
    Field,
    Junction,
    Membership,
    Negation,
    Truth,
)
from tests.unit.services.orchestrator.making import request

NOTHING = object()


def holds(condition: Condition, row: dict[str, Any]) -> bool:
    """Whether a condition holds for a request given as a map of its fields."""
    match condition:
        case Comparison(sign=sign, left=left, right=right):
            return compare(sign, value(left, row), value(right, row))
        case Membership(field=field, values=values):
            return any(compare("==", value(field, row), one) for one in values)
        case Affix(field=field, text=text, is_start=is_start):
            found = value(field, row)
            part = "" if not isinstance(found, str) else found
            cut = part[: len(text)] if is_start else part[len(part) - len(text) :]
            return isinstance(found, str) and len(part) >= len(text) and cut == text
        case Existence(field=field):
            return value(field, row) is not NOTHING
        case Truth(of=of):
            return value(of, row) is True
        case Negation(of=inner):
            return not holds(inner, row)
        case Junction(is_all=is_all, of=parts):
            found = [holds(part, row) for part in parts]
            return False not in found if is_all else True in found
    raise AssertionError(condition)


def value(of: Field | Constant, row: dict[str, Any]) -> Any:
    """The value of an operand; null is the same as not there."""
    if isinstance(of, Constant):
        return of.value
    source = row["parameters"] if of.name == "parameters" else row
    found = source.get(of.key or of.name)
    return NOTHING if found is None else found


def kind_of(found: Any) -> str:
    """text, number, boolean, or nothing."""
    if isinstance(found, bool):
        return "boolean"
    if isinstance(found, int | float):
        return "number"
    return "text" if isinstance(found, str) else "nothing"


def compare(sign: str, left: Any, right: Any) -> bool:
    """Equal within a kind; ordered if numbers."""
    is_one_kind = kind_of(left) == kind_of(right) != "nothing"
    if sign == "!=":
        return not compare("==", left, right)
    if sign == "==":
        return is_one_kind and bool(left == right)
    if not is_one_kind or kind_of(left) != "number":
        return False
    if sign in ("<", "<="):
        return bool(left < right or (sign == "<=" and left == right))
    return bool(left > right or (sign == ">=" and left == right))


# Trees as text, and requests.

TEXTS = ("", "a", "ab", "gold", "it's", 'a "b"', "back\\slash", "é")
KEYS = ("tier", "score", "flag", "a b", "in")
texts = st.sampled_from(TEXTS)
numbers = st.one_of(
    st.integers(-3, 5), st.integers(-(2**63), 2**63), st.floats(-10, 10), st.just(1e300)
)
booleans = st.booleans()


def quoted(text: str) -> str:
    """A text literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def shown(one: Any) -> str:
    """A literal."""
    if isinstance(one, bool):
        return "true" if one else "false"
    return quoted(one) if isinstance(one, str) else repr(one)


literals = st.one_of(texts, numbers, booleans).map(shown)
parameters = st.sampled_from(KEYS).flatmap(
    lambda key: (
        st.just(f"parameters[{quoted(key)}]")
        if " " in key
        else st.sampled_from((f"parameters.{key}", f'parameters["{key}"]'))
    )
)
of_numbers = st.sampled_from([name for name, kind in FIELDS.items() if kind == "number"])
of_texts = st.sampled_from([name for name, kind in FIELDS.items() if kind == "text"])
fields = st.one_of(parameters, of_numbers, of_texts)
orders = st.sampled_from(("==", "!=", "<", "<=", ">", ">="))
equals = st.sampled_from(("==", "!="))
number_texts = numbers.map(shown)
text_texts = texts.map(shown)


def listed(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """A list literal of one kind."""
    return st.lists(values, min_size=1, max_size=4).map(lambda some: f"[{', '.join(some)}]")


comparisons = st.one_of(
    st.tuples(of_numbers | parameters, orders, number_texts | of_numbers),
    st.tuples(number_texts, orders, of_numbers | parameters),
    st.tuples(of_texts | parameters, equals, text_texts | of_texts),
    st.tuples(parameters, equals, booleans.map(shown)),
    st.tuples(of_numbers | parameters, st.sampled_from(("in", "not in")), listed(number_texts)),
    st.tuples(of_texts | parameters, st.sampled_from(("in", "not  in")), listed(text_texts)),
    st.tuples(parameters, st.just("in"), listed(booleans.map(shown))),
    st.tuples(of_texts | parameters, st.sampled_from(("starts_with", "ends_with")), text_texts),
).map(" ".join)
conditions = st.recursive(
    st.one_of(
        comparisons, booleans.map(shown), parameters, fields.map(lambda field: f"exists {field}")
    ),
    lambda inner: st.one_of(
        inner.map(lambda text: f"not ({text})"),
        st.tuples(inner, st.sampled_from((" and ", " or ")), inner).map("".join),
        inner.map(lambda text: f"({text})"),
    ),
    max_leaves=6,
)
rows = st.fixed_dictionaries(
    {
        "tenant_id": st.sampled_from([text for text in TEXTS if text]),
        "risk_level": st.integers(1, 3),
        "row_count": st.integers(1, 5),
        "entity": st.none() | texts,
        "parameters": st.dictionaries(
            st.sampled_from(KEYS),
            st.one_of(st.none(), texts, numbers, booleans, st.just(float("nan"))),
        ),
    }
)


def request_of(row: dict[str, Any]) -> InferenceRequest:
    """The request with these fields."""
    return request(
        row["row_count"],
        tenant_id=row["tenant_id"],
        risk_level=row["risk_level"],
        entity=UNSET if row["entity"] is None else row["entity"],
        parameters=row["parameters"] or UNSET,
    )
