"""Starts instances: by exec, or by asking the template for a fork; the rest is the same."""

import os
import resource
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from shared import logs
from shared.channel import Channel, pair
from shared.clock import Clock
from shared.environment import instance_id
from shared.home import Config
from shared.inheritance import Facts, encode_facts
from supervisor.instance import Instance
from supervisor.reaper import Reaper
from supervisor.sockets import Listeners
from supervisor.spawn import facts_file, spawn
from supervisor.spec import ChildSpec
from supervisor.stderr import StderrPipe
from supervisor.variables import variables

log = logs.get("supervisor.launcher")
Fork = Callable[[bytes, list[int]], bool]
"""Ask the template: encoded facts and descriptors (control, stderr, listener?); False: not now."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every child of this home gets. `tree` is where our packages are imported from."""

    home: Path
    run_dir: Path
    config: Config
    infra: str
    tree: str
    inherited: Mapping[str, str]
    jemalloc: str | None

    def facts(self, spec: ChildSpec, birth: "Birth", started_us: int) -> Facts:
        """The facts for one life of a child."""
        limits = self.config.supervisor
        return Facts(
            supervisor_pid=os.getpid(),
            service=spec.service,
            index=spec.index,
            instance=birth.identity,
            home=str(self.home),
            run_dir=str(self.run_dir),
            table=msgspec.Raw(msgspec.msgpack.encode(self.config.table(spec.service))),
            replicas=self.config.runtime.replicas,
            replicas_max=self.config.runtime.replicas_max,
            access=self.config.access,
            infra=self.infra,
            standby=birth.is_standby,
            started_us=started_us,
            trace_id=birth.trace_id,
            restarts=birth.restarts,
            drain_s=spec.drain_s,
            log_bytes_max=limits.log_mib_max * 1024 * 1024,
            log_files_max=limits.log_files_max,
        )


@dataclass(frozen=True, slots=True)
class Birth:
    """What distinguishes one life: its instance id, its role, how many ended before it, and the
    operation it belongs to."""

    identity: str
    is_standby: bool
    restarts: int
    trace_id: str


class Launcher:
    """Makes the processes of one mesh. `fork` is set by the template once it is there."""

    def __init__(
        self, surroundings: Surroundings, listeners: Listeners, reaper: Reaper, clock: Clock
    ) -> None:
        self.surroundings = surroundings
        self.fork: Fork = lambda facts, descriptors: False
        self._listeners, self._reaper, self._clock = listeners, reaper, clock

    def start(
        self,
        spec: ChildSpec,
        *,
        standby: bool,
        restarts: int,
        trace_id: str,
        on_change: Callable[[Instance], None],
    ) -> Instance | None:
        """A new instance in state starting; None when no process could be made now."""
        birth = Birth(instance_id(spec.service, spec.index), standby, restarts, trace_id)
        stderr = StderrPipe(spec.label)
        instance = Instance(
            label=spec.label,
            identity=birth.identity,
            is_standby=standby,
            clock=self._clock,
            stderr=stderr,
        )
        facts = self.surroundings.facts(spec, birth, self._clock.monotonic_us())
        ours, theirs = pair()
        channel = Channel(
            ours,
            is_child=False,
            on_message=instance.on_message,
            on_closed=lambda: self.abandon(instance, "ended before it was adopted"),
        )
        instance.attach(channel)
        make = self._forked if spec.is_forked else self._executed
        with theirs:
            is_made = make(spec, instance, facts, theirs.fileno())
        stderr.close_child_end()
        if not is_made:
            instance.lost("could not be started")
            return None
        instance.on_change = on_change
        return instance

    def abandon(self, instance: Instance, reason: str) -> None:
        """Give up on a fork whose pid never came; nothing happens once it has come."""
        if instance.pid == 0 and instance.state != "gone":
            self._reaper.expect(-1)
            instance.lost(reason)

    def _executed(
        self,
        spec: ChildSpec,
        instance: Instance,
        facts: Facts,
        control: int,
    ) -> bool:
        listener = self._listeners.get(spec.service, spec.index)
        pid = self.execute(
            spec.command,
            facts,
            descriptors={"control": control, "listen": listener.fileno()},
            stderr=instance.stderr.descriptor,
            threads=spec.threads,
            is_template=False,
        )
        if pid:
            self._adopt(spec, instance, pid)
        return pid != 0

    def _forked(
        self,
        spec: ChildSpec,
        instance: Instance,
        facts: Facts,
        control: int,
    ) -> bool:
        def hello(pid: int) -> None:
            self._adopt(spec, instance, pid)
            self._reaper.expect(-1)

        instance.on_hello = hello
        listener = self._listeners.get(spec.service, spec.index)
        descriptors = [control, instance.stderr.descriptor, listener.fileno()]
        if not self.fork(encode_facts(facts), descriptors):
            return False
        self._reaper.expect(+1)
        return True

    def _adopt(self, spec: ChildSpec, instance: Instance, pid: int) -> None:
        instance.pid = pid
        if spec.memory_mib_max:
            limit = spec.memory_mib_max * 1024 * 1024
            # Private memory only: file-mapped weights are not counted by RLIMIT_DATA.
            with suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_DATA, (limit, limit))
        self._reaper.watch(pid, instance.on_exit)

    def execute(
        self,
        command: tuple[str, ...],
        facts: Facts,
        *,
        descriptors: dict[str, int],
        stderr: int,
        threads: int,
        is_template: bool,
    ) -> int:
        """Exec one process of our tree; 0 when the machine refuses (the reason is logged)."""
        around = self.surroundings
        config = facts_file(encode_facts(facts))
        try:
            return spawn(
                command,
                variables=variables(
                    around.inherited,
                    tree=around.tree,
                    threads=threads,
                    jemalloc=around.jemalloc,
                    is_template=is_template,
                ),
                descriptors={"config": config, **descriptors},
                stderr=stderr,
            )
        except OSError:
            log.exception("spawn_failed", command=list(command))
            return 0
        finally:
            os.close(config)
