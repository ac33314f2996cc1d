"""What the supervisor does to itself before the first child, so that every child inherits it."""

import resource

from shared import parent


def harden() -> None:
    """Adopt orphans, refuse privileges, be punctual, raise the descriptor limit, write no core
    files.

    A core file would hold requests; descriptors must suffice for the connection cap before any
    service meets the limit.
    """
    parent.adopt_orphans()
    parent.refuse_new_privileges()
    parent.be_punctual()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    _, core_hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, core_hard))
