"""From a view's text to a view that answers: sources, relations, closure, certificate.

Runs on the loader's thread, beside serving; what comes out is used by the loop and never changes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from contracts.features import FeatureLineage, SourceRow, ViewHeader
from contracts.types import UNSET
from services.data_fabric.certificate import Certificate, CertificateStore, subject
from services.data_fabric.certification import certify, replayed_requests
from services.data_fabric.closure import Closure, compile_plan
from services.data_fabric.column_lineage import feature_columns
from services.data_fabric.engine import Engine
from services.data_fabric.engine_path import EnginePath
from services.data_fabric.evaluation import identify, materialise
from services.data_fabric.expressions import Unsupported
from services.data_fabric.index_needs import IndexKey, needed_indexes
from services.data_fabric.index_store import IndexStore
from services.data_fabric.lint import check_plan
from services.data_fabric.online import Index, build_index, index_query
from services.data_fabric.plan import Plan, bind
from services.data_fabric.sources import Source, SourceReader, StatKey, stats
from services.data_fabric.sql import digest_of, parse
from shared.clock import Clock

Signature = dict[str, list[tuple[Path, StatKey]]]
"""The files of each source as the file system shows them."""


@dataclass(frozen=True, slots=True)
class LoadedView:
    """A view over one state of its sources. Exactly one of `closure` and `engine` is set; without
    a closure `reason` says why the view runs on the engine."""

    header: ViewHeader
    digest: str
    lineage: FeatureLineage
    columns: dict[str, list[str]]
    sources: list[SourceRow]
    signature: Signature
    closure: Closure | None
    engine: EnginePath | None
    reason: str
    durations_s: dict[str, float]

    def is_changed(self, now: Signature) -> bool:
        """Whether files of the view's sources look different now."""
        names = {row.source for row in self.sources}
        return {name: now.get(name) for name in names} != self.signature

    @property
    def path(self) -> Literal["closure", "engine"]:
        """Which of the two answers."""
        return "closure" if self.closure is not None else "engine"


SHIPPED = Path("features/certificates")
"""Where a home brings the certificates of its views along."""


@dataclass(frozen=True, slots=True)
class _Proven:
    """A certified closure; or the engine, and why there is no closure."""

    closure: Closure | None = None
    certificate: Certificate | None = None
    engine: EnginePath | None = None
    reason: str = ""


class _Durations:
    """Seconds of each step of a load."""

    def __init__(self, clock: Clock) -> None:
        self.durations_s: dict[str, float] = {}
        self._clock = clock
        self._since_s = clock.monotonic()

    def note(self, step: str) -> None:
        """The step that began at the last note is over."""
        now_s = self._clock.monotonic()
        self.durations_s[step] = now_s - self._since_s
        self._since_s = now_s


class Loader:
    """Loads views of one home. `patterns` are the sources' paths below the home; certificates that
    are made go into `certificates`, with the indexes beside it; those that the home brings along
    lie in `shipped`."""

    def __init__(
        self,
        home: Path,
        patterns: Mapping[str, str],
        certificates: Path,
        clock: Clock,
        *,
        shipped: Path | None = None,
    ) -> None:
        self._home = home
        self._places = {name: (home, pattern) for name, pattern in patterns.items()}
        self._certificates = CertificateStore(certificates, shipped or home / SHIPPED)
        self._indexes = IndexStore(certificates.with_name("indexes"))
        self._reader = SourceReader(clock)
        self._clock = clock

    def load(self, text: str) -> LoadedView:
        """Load a view. Raises ViewRefused, SourceRefused or EngineFailed."""
        durations = _Durations(self._clock)
        view = parse(text)
        before = self.signature()
        sources = identify(self._reader, view, self._places)
        plan = bind(view, {name: source.columns() for name, source in sources.items()})
        check_plan(plan)
        data = data_of(sources)
        durations.note("check")
        proven = self._restore(plan, data) or self._prove(plan, sources, data, durations)
        durations.note("index")
        certificate = proven.certificate
        return LoadedView(
            header=view.header,
            digest=view.digest,
            lineage=FeatureLineage(
                data=data,
                feature_code=view.feature_code,
                certificate=UNSET if certificate is None else certificate.digest(),
            ),
            columns=feature_columns(plan),
            sources=[row for source in sources.values() for row in self._source_rows(source)],
            signature={name: before.get(name, []) for name in sources},
            closure=proven.closure,
            engine=proven.engine,
            reason=proven.reason,
            durations_s=durations.durations_s,
        )

    def signature(self) -> Signature:
        """How the files of every source look now; other looks may be other content."""
        return {name: stats(*place) for name, place in self._places.items()}

    def _restore(self, plan: Plan, data: str) -> "_Proven | None":
        """The closure over stored indexes, where it is certified."""
        wanted = subject(plan.view.digest, plan.view.feature_code, data)
        known = self._certificates.get(wanted.key)
        if known is None or known.difference:
            return None
        indexes = self._indexes.get(known.key)
        return None if indexes is None else _Proven(compile_plan(plan, indexes), known)

    def _prove(
        self, plan: Plan, sources: Mapping[str, Source], data: str, durations: "_Durations"
    ) -> "_Proven":
        """Compute the relations, and the closure with its certificate; or keep the engine."""
        engine = Engine()
        path: EnginePath | None = None
        try:
            materialise(engine, self._reader, plan, sources)
            durations.note("materialise")
            proven = self._compile(engine, plan, sources, data)
            if proven.closure is None:
                path = EnginePath(engine, plan)
        finally:
            if path is None:
                engine.close()
        return replace(proven, engine=path)

    def _compile(
        self, engine: Engine, plan: Plan, sources: Mapping[str, Source], data: str
    ) -> "_Proven":
        wanted = subject(plan.view.digest, plan.view.feature_code, data)
        known = self._certificates.get(wanted.key)
        try:
            indexes = build_indexes(engine, plan)
            closure = compile_plan(plan, indexes)
        except Unsupported as error:
            return _Proven(reason=str(error))
        if known is None:
            replayed = replayed_requests(self._reader, plan.view.header, sources)
            known = certify(wanted, plan, closure, list(indexes.values()), engine, replayed)
            self._certificates.put(known)
        if known.difference:
            return _Proven(reason=known.difference)
        self._indexes.put(known.key, indexes)
        return _Proven(closure, known)

    def _source_rows(self, source: Source) -> list[SourceRow]:
        return [
            SourceRow(
                source=source.name,
                path=str(file.path.relative_to(self._home)),
                digest=file.digest,
                bytes=file.bytes,
                rows=file.rows,
                event_time_max=UNSET if file.newest is None else file.newest.isoformat(),
            )
            for file in source.files
        ]


def data_of(sources: Mapping[str, Source]) -> str:
    """The digest of what a view reads: its sources by name, by content."""
    return digest_of(*(f"{name} {sources[name].digest}" for name in sorted(sources)))


def build_indexes(engine: Engine, plan: Plan) -> dict[IndexKey, Index]:
    """Every index that the plan's look-ups need, from the relations' tables."""
    indexes = {}
    for key, need in needed_indexes(plan).items():
        relation, keys, time = key
        table = engine.query(index_query(relation, keys, time, need.columns), relation)
        indexes[key] = build_index(relation, table, keys, time, need.columns, need.shifts)
    return indexes
