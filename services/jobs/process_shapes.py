"""What every process of a mesh looks like from outside: memory, descriptors, threads.

Source: proc(5). Found by walking down from the supervisor, so that standbys and the template count.
"""

import os
from pathlib import Path

_MIB = 2**20
Shapes = dict[tuple[str, str], float]
"""(process title, what) → value."""


def tree(root: int) -> list[int]:
    """A process and all below it, itself first."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has just ended
            parents[int(folder.name)] = int(stat[1])
    found = [root]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def names(root: int) -> dict[int, str]:
    """Process → its title; of several with one title (active, standby) the younger has a mark."""
    found: dict[int, str] = {}
    for pid in tree(root):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0 ")
        except OSError:
            continue
        title = line.replace(b"\0", b" ").decode(errors="replace").strip()
        short = title.rpartition(" -m ")[2] if " -m " in title else title
        taken = sum(name.partition(" #")[0] == short for name in found.values())
        found[pid] = short if not taken else f"{short} #{taken + 1}"
    return found


def shapes(processes: dict[int, str]) -> Shapes:
    """Memory, descriptors and threads of each; one that has ended is absent."""
    found: Shapes = {}
    for pid, name in processes.items():
        folder = Path("/proc") / str(pid)
        try:
            pages = int((folder / "statm").read_text().split()[1])
            descriptors = len(os.listdir(folder / "fd"))
            threads = len(os.listdir(folder / "task"))
        except OSError:
            continue
        found[name, "rss_mib"] = pages * os.sysconf("SC_PAGE_SIZE") / _MIB
        found[name, "descriptors"] = descriptors
        found[name, "threads"] = threads
    return found
