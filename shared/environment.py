"""What a service process knows of its surroundings: identity, folders, its table, its clock."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from shared.access import Access
from shared.clock import SYSTEM, Clock
from shared.home import CONFIG_NAME, Config, Home
from shared.inheritance import Facts

UNKNOWN_INFRA = "sha256:" + "0" * 64
"""The infrastructure digest where no supervisor measured one (tests)."""
_test_cores = 2


class StartupReport:
    """Seconds of each step of a start, in order; the supervisor prints them.

    `on_add` is called after each change, also those that come after READY.
    """

    def __init__(self) -> None:
        self.durations_s: dict[str, float] = {}
        self.on_add: Callable[[], object] = lambda: None

    def add(self, name: str, seconds: float) -> None:
        """Count `seconds` for a step such as "map" or "warm"; a step may come in parts."""
        self.durations_s[name] = self.durations_s.get(name, 0.0) + seconds
        self.on_add()


@dataclass(frozen=True)
class Environment:
    """One process's surroundings.

    `config` is the service's table of `mortise.toml` (`shared.home.Table`); `instance` is
    `service.index-boot id`; `standby` is how it started: a promoted one keeps True.
    """

    service: str
    index: int
    instance: str
    home: Path
    run_dir: Path
    config: Any
    access: Access
    infra: str
    standby: bool
    clock: Clock
    started_us: int
    startup: StartupReport
    replicas: int = 1
    replicas_max: int = 1
    restarts: int = 0

    @classmethod
    def from_facts(cls, facts: Facts) -> "Environment":
        """The environment that the supervisor handed down."""
        table_type = type(Config(home_version=1).table(facts.service))
        return cls(
            service=facts.service,
            index=facts.index,
            instance=facts.instance,
            home=Path(facts.home),
            run_dir=Path(facts.run_dir),
            config=msgspec.msgpack.decode(facts.table, type=table_type),
            access=Access.from_table(facts.access),
            infra=facts.infra,
            standby=facts.standby,
            clock=SYSTEM,
            started_us=facts.started_us,
            startup=StartupReport(),
            replicas=facts.replicas,
            replicas_max=facts.replicas_max,
            restarts=facts.restarts,
        )

    @classmethod
    def for_test(
        cls,
        service: str,
        home: Path,
        index: int = 0,
        *,
        clock: Clock = SYSTEM,
        standby: bool = False,
        **config: Any,
    ) -> "Environment":
        """An environment without a supervisor: the home's file if there is one, with fields of
        the service's table replaced by `config`. Creates the folders of `.mortise/`."""
        place = Home(home)
        file = place.config() if (place.path / CONFIG_NAME).exists() else Config(home_version=1)
        file = file.placed(_test_cores)
        run_dir = place.path / file.run_dir
        for folder in (run_dir, place.log_dir, place.policy_dir, place.spool_dir, place.fabric_dir):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return cls(
            service=service,
            index=index,
            instance=instance_id(service, index),
            home=place.path,
            run_dir=run_dir,
            config=msgspec.structs.replace(file.table(service), **config),
            access=Access.owner(),
            infra=UNKNOWN_INFRA,
            standby=standby,
            clock=clock,
            started_us=clock.monotonic_us(),
            startup=StartupReport(),
            replicas=file.runtime.replicas,
            replicas_max=file.runtime.replicas_max,
        )


def instance_id(service: str, index: int) -> str:
    """A new `service.index-<8 hex boot id>`."""
    return f"{service}.{index}-{secrets.token_hex(4)}"
