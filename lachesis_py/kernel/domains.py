"""Inside which set of threads a nice value means anything.

The kernel weighs threads only against others of the same cpu cgroup. In the root group, with autogroup on,
each session is a group of its own: a nice value there ranks nothing outside its session.
"""

from __future__ import annotations

from lachesis_py.kernel.proc import Gone, ProcFs


def cpu_cgroup(proc: ProcFs, pid: int, tid: int) -> str:
    """Path of the thread's group in the hierarchy that carries the cpu controller."""
    unified = "/"
    for line in proc.read(f"{pid}/task/{tid}/cgroup", 8192).decode(errors="replace").splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            return path
        if not controllers:
            unified = path
    return unified


def domain_of(proc: ProcFs, pid: int, tid: int, autogroup: bool) -> str:
    group = cpu_cgroup(proc, pid, tid)
    if group != "/" or not autogroup:
        return f"cgroup:{group}"
    try:
        return "autogroup:" + proc.read(f"{pid}/autogroup", 128).split()[0].decode().rpartition("-")[2]
    except (Gone, IndexError):
        return "cgroup:/"
