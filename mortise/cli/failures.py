"""How a command fails outside the mesh's own vocabulary, and the exit codes."""

EXIT_ERROR, EXIT_USAGE, EXIT_MESH_DOWN, EXIT_INTERRUPTED, EXIT_PIPE_CLOSED = 1, 2, 3, 130, 141


class UsageError(Exception):
    """The command was written wrongly: exit code 2."""


class CommandError(Exception):
    """A command failed outside the mesh's own vocabulary: a name, the reason, and what to do."""

    def __init__(self, name: str, reason: str, remedy: str = "", code: int = EXIT_ERROR) -> None:
        super().__init__(reason)
        self.name, self.reason, self.remedy, self.code = name, reason, remedy, code
