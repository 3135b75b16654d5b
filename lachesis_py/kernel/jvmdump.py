"""Reads HotSpot's thread dump: which native thread has which name.

Thread names are free text. They may hold quotes, newlines and perfect imitations of the lines around them, and in an
engine shared by several users they are chosen by people who have no say over each other's threads. So a line counts
as the header of a Java thread only by the address in it, and the JVM lists the addresses of all its Java threads
BEFORE the first name. Each address has exactly one header; where it occurs twice one is forged, nobody can tell which,
and the thread stays without a name: `doubtful` counts those. The JVM's own threads have names that no program chooses
and come after the last Java thread.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_LIST = re.compile(
    rb"\A[^\n]*\nFull thread dump [^\n]*\n\nThreads class SMR info:\n"
    rb"_java_thread_list=0x[0-9a-f]+, length=(\d+), elements=\{\n([0-9a-fx, \n]*)\}\n"
)
_ADDRESS = re.compile(rb"tid=(0x[0-9a-f]{8,16}) ")
_TIMES = rb"(?:os_prio=-?\d+ )?(?:cpu=\d+\.\d+ms )?(?:elapsed=(\d+\.\d+)s )?"
_BEFORE_ADDRESS = re.compile(rb'" (?:#(\d+) (?:\[(\d+)\] )?(?:daemon )?(?:prio=\d+ )?)?' + _TIMES + rb"\Z")
_AFTER_ADDRESS = re.compile(rb"nid=(0x[0-9a-f]+|\d+) [^\n]*")
_OWN_HEADER = re.compile(
    rb'^"([^"\n]+)" ' + _TIMES + rb"tid=0x[0-9a-f]+ nid=(0x[0-9a-f]+|\d+) ",
    re.MULTILINE,
)
_OPENING = b'\n\n"'
_END = b"\nJNI global ref"
_NO_FRAMES = b"[0x0000000000000000]"
_SERVICE_NAMES = re.compile(
    r"(?:C1|C2|JVMCI) CompilerThread\d+|Sweeper thread|Service Thread|Signal Dispatcher|Monitor Deflation Thread"
    r"|Notification Thread|Attach Listener|StringDedupThread"
)


class DumpError(Exception):
    """The text is not a whole thread dump."""


class NamedThread(NamedTuple):
    nid: int  # the thread's number in the JVM's own pid namespace
    name: str
    elapsed: float | None  # seconds since the thread began
    java: bool  # False: the JVM's own (VM, GC, JIT compiler, service threads)


class Dump(NamedTuple):
    threads: list[NamedThread]
    doubtful: int  # threads whose header cannot be told from an imitation


class _Place(NamedTuple):
    """An address of the list, found again in the text: a header, genuine or forged."""

    address: bytes
    at: int
    after: int
    line_end: int


def parse(text: bytes) -> Dump:
    listed = _LIST.match(text)
    if listed is None:
        raise DumpError("it does not begin with the list of Java threads that every JDK since 10 prints")
    addresses = listed[2].replace(b",", b" ").split()
    if len(addresses) != int(listed[1]):
        raise DumpError(f"its list announces {int(listed[1])} Java threads and holds {len(addresses)}")
    counts = dict.fromkeys(addresses, 0)
    places = []
    for match in _ADDRESS.finditer(text, listed.end()):
        if match[1] in counts:
            counts[match[1]] += 1
            places.append(_Place(match[1], match.start(), match.end(), _line_end(text, match.end())))
    if missing := sum(not count for count in counts.values()):
        raise DumpError(f"{missing} of its {len(addresses)} Java threads are missing: it was cut short")

    threads: list[NamedThread] = []
    doubtful = sum(count > 1 for count in counts.values())
    previous_end = last_java_end = listed.end() - 1
    for place in places:
        if counts[place.address] == 1:
            thread = _java_thread(text, previous_end, place)
            if thread is None:
                doubtful += 1
            else:
                threads.append(thread)
            if place.address == addresses[-1]:
                last_java_end = place.line_end
        previous_end = place.line_end
    if not addresses or counts[addresses[-1]] == 1:
        threads += _own_threads(text, last_java_end)
    return _without_rivals(threads, doubtful)


def _line_end(text: bytes, start: int) -> int:
    end = text.find(b"\n", start)
    if end < 0:
        raise DumpError("it ends inside a line")
    return end


def _java_thread(text: bytes, previous_end: int, place: _Place) -> NamedThread | None:
    """The thread whose header holds this place; None where it is not clear what its name is."""
    opening = text.find(_OPENING, previous_end, place.at)
    if opening < 0:
        return None
    start = opening + len(_OPENING)
    # The longest tail of a header is shorter than this; a name may be as long as it likes.
    before = _BEFORE_ADDRESS.search(text, max(start, place.at - 200), place.at)
    after = _AFTER_ADDRESS.match(text, place.after, place.line_end)
    if before is None or after is None:
        return None
    raw = text[start : before.start()]
    if _OPENING in raw:  # the name may begin at either place
        return None
    nid = _number(after[1])
    if before[2] is not None and int(before[2]) != nid:
        return None
    name = raw.decode(errors="replace")
    service = after[0].endswith(_NO_FRAMES) and _SERVICE_NAMES.fullmatch(name) is not None
    return NamedThread(nid, name, _seconds(before[3]), java=before[1] is not None and not service)


def _own_threads(text: bytes, last_java_end: int) -> list[NamedThread]:
    end = text.find(_END, last_java_end)
    if end < 0:
        raise DumpError("its end is missing: it was cut short")
    return [
        NamedThread(_number(match[3]), match[1].decode(errors="replace"), _seconds(match[2]), java=False)
        for match in _OWN_HEADER.finditer(text, last_java_end, end)
    ]


def _without_rivals(threads: list[NamedThread], doubtful: int) -> Dump:
    """One native thread has one name; where two claim it, none has it."""
    by_nid: dict[int, NamedThread | None] = {}
    for thread in threads:
        by_nid[thread.nid] = None if thread.nid in by_nid else thread
    kept = [thread for thread in by_nid.values() if thread is not None]
    return Dump(kept, doubtful + len(threads) - len(kept))


def _number(digits: bytes) -> int:
    return int(digits, 16) if digits.startswith(b"0x") else int(digits)


def _seconds(digits: bytes | None) -> float | None:
    return None if digits is None else float(digits)
