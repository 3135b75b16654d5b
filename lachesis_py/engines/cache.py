"""Where engines are kept: a cache outside the repository, and how something gets in there whole or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path


def cache_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """LACHESIS_CACHE, else XDG_CACHE_HOME/lachesis, else ~/.cache/lachesis."""
    own = environment.get("LACHESIS_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    shared = environment.get("XDG_CACHE_HOME")
    base = Path(shared) if shared and Path(shared).is_absolute() else Path.home() / ".cache"
    return base / "lachesis"


@contextlib.contextmanager
def locked(path: Path, waiting: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Hold the lock file `path`; `waiting` is called once when somebody else has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # The file stays: unlinking a lock lets two holders lock two different files of one name.
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def staged(target: Path) -> Iterator[Path]:
    """A directory to fill beside `target`; it takes that name only when the block ends without an error.

    Hold the target's lock: what an interrupted predecessor left behind is swept away first.
    """
    prefix = f".{target.name}.partial-"
    target.parent.mkdir(parents=True, exist_ok=True)
    for leftover in target.parent.glob(f"{prefix}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    staging = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    try:
        yield staging
        staging.chmod(0o755)
        staging.rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
