"""A view's text: its header, its parse tree, the sources it names, and the hashes that identify it.

Pure: reads no file and runs no query. What the tree may say is `lint`'s, how it is run `plan`'s.
"""

import hashlib
from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from contracts.features import ViewHeader
from services.data_fabric.config import PARSER, view_bytes_max
from services.data_fabric.header import read_header
from services.data_fabric.refusal import ViewRefused

REQUEST = "request"
"""The relation that holds the request's rows."""


@dataclass(frozen=True, slots=True)
class View:
    """A parsed view. `digest` is over the text's bytes, `feature_code` over the parse tree without
    comments; `sources` are the tables that are neither `request` nor a common table expression."""

    header: ViewHeader
    text: str
    digest: str
    feature_code: str
    tree: exp.Select
    sources: tuple[str, ...]


def digest_of(*parts: str) -> str:
    """`sha256:` over the parts, each ended by a line feed."""
    return "sha256:" + hashlib.sha256("".join(f"{part}\n" for part in parts).encode()).hexdigest()


def text_digest(text: str) -> str:
    """sha256 of a text's bytes: the digest of a view."""
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def parse(text: str) -> View:
    """The view in `text`. Raises ViewRefused with the line of what cannot be read."""
    size = len(text.encode())
    if size > view_bytes_max:
        reason = f"the text has {size} bytes, view_bytes_max is {view_bytes_max}"
        raise ViewRefused.of(reason)
    header = read_header(text)
    tree = _parse_tree(text)
    return View(
        header=header,
        text=text,
        digest=text_digest(text),
        feature_code=digest_of(PARSER, tree.sql("duckdb", comments=False)),
        tree=tree,
        sources=_sources(tree),
    )


def _parse_tree(text: str) -> exp.Select:
    try:
        statements = sqlglot.parse(text, read="duckdb")
    except SqlglotError as error:
        details = getattr(error, "errors", None) or [{}]
        line = details[0].get("line") or 0
        reason = details[0].get("description") or str(error)
        raise ViewRefused.of(f"the SQL cannot be parsed: {reason}", line) from error
    if len(statements) != 1 or not isinstance(statements[0], exp.Select):
        raise ViewRefused.of("a view is one SELECT statement")
    for table in statements[0].find_all(exp.Table):
        if not isinstance(table.this, exp.Identifier) or table.args.get("db"):
            reason = f"{table.sql('duckdb')}: a relation is named plainly"
            raise ViewRefused.of(reason, line_of(table))
    for name, query in common_tables(statements[0]).items():
        if name == REQUEST or name in tables_read(query):
            raise ViewRefused.of(f"the table expression {name} hides what it is named after",
                                 line_of(query))  # fmt: skip
    return statements[0]


def common_tables(tree: exp.Expression) -> dict[str, exp.Expression]:
    """The common table expressions of the outermost WITH, in order of definition."""
    with_ = tree.args.get("with_")
    return {} if with_ is None else {cte.alias: cte.this for cte in with_.expressions}


def tables_read(tree: exp.Expression) -> set[str]:
    """Names of the tables that a query names, common table expressions included."""
    return {table.name for table in tree.find_all(exp.Table)}


def _sources(tree: exp.Select) -> tuple[str, ...]:
    return tuple(sorted(tables_read(tree) - {REQUEST} - set(common_tables(tree))))


def line_of(node: exp.Expression) -> int:
    """The line of the first identifier at or below a node (only these carry one), else of the
    nearest one above; 0 where there is none."""
    for place in (node, *node.find_all(exp.Identifier)):
        if "line" in place.meta:
            return int(place.meta["line"])
    return line_of(node.parent) if node.parent is not None else 0
