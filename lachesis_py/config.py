"""YAML to validated settings. Every error names the file, the line, the key and what would be right."""

from __future__ import annotations

import pwd
import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import yaml

from lachesis_py import registry
from lachesis_py.errors import LachesisError
from lachesis_py.matching import Clause
from lachesis_py.units import Duration, Size

SHORTEST_PERIOD = 0.05


class ConfigError(LachesisError):
    """The configuration is wrong; the message says where and what would be right."""


class ProcessSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which processes of this node belong to the engine. User and command line must both match."""

    user: str
    """Account the engine's worker processes run as (name or number)."""

    command: str = ""
    """Regular expression searched in the command line; empty: what the driver knows of its engine."""

    exclude: tuple[str, ...] = ()
    """Regular expressions; a process whose command line contains one is never touched."""

    most: int = 64
    """At most this many processes are managed; more is taken for a mistake in the expressions."""

    @property
    def uid(self) -> int:
        return int(self.user) if self.user.isdigit() else pwd.getpwnam(self.user).pw_uid


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    driver: str
    process: ProcessSettings
    poll: Duration | None = None
    """How often values are asked for; by default the shortest period of the schedules on this engine."""

    stale_after: Duration | None = None
    """Without fresh values for this long the engine's threads are restored; by default five polls, at least 3s."""

    options: Any = None


class ScheduleSettings(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    policy: Any
    policy_name: str
    translator: Any
    match: tuple[Clause, ...] = (Clause(),)
    period: Duration = Duration(1.0)


class MetricsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    listen: str = "127.0.0.1:9477"
    """Address of the Prometheus endpoint; empty: none."""

    most_operators: int = 500
    """At most this many operators get series of their own."""

    window: Duration = Duration(5.0)
    """Rates are taken over this much time."""


class ControlSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    group: str = ""
    """Members of this group may use the control socket; empty: root only."""


class LogSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    format: Literal["text", "json"] = "text"
    level: Literal["debug", "info", "warning", "error"] = "info"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    mode: Literal["observe", "act"] = "observe"
    runtime_dir: str = "/run/lachesis"
    engines: tuple[EngineSettings, ...] = ()
    schedules: tuple[ScheduleSettings, ...] = ()
    metrics: MetricsSettings = MetricsSettings()
    control: ControlSettings = ControlSettings()
    log: LogSettings = LogSettings()

    def engine(self, name: str) -> EngineSettings:
        return next(engine for engine in self.engines if engine.name == name)

    def poll_interval(self, engine: EngineSettings) -> float:
        if engine.poll is not None:
            return engine.poll
        periods = [s.period for s in self.schedules if any(clause_names(c, engine.name) for c in s.match)]
        return min(periods, default=Duration(1.0))

    def stale_after(self, engine: EngineSettings) -> float:
        return engine.stale_after or max(3.0, 5 * self.poll_interval(engine))


def clause_names(clause: Clause, engine: str) -> bool:
    return clause.overlaps(Clause(engine=engine))


def load(path: Path) -> Settings:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}; `lachesis sample-config > {path}` writes one to start from"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error}") from error
    return parse(text, str(path))


def parse(text: str, source: str = "configuration") -> Settings:
    try:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not valid YAML: {error}") from error
    return _Reader(source, tree).settings({} if raw is None else raw)


T = TypeVar("T")


class _Reader:
    def __init__(self, source: str, tree: yaml.Node | None) -> None:
        self._source = source
        self._tree = tree

    def fail(self, path: Sequence[str | int], message: str) -> ConfigError:
        line = _line_of(self._tree, path)
        return ConfigError(f"{self._source}:{line}: {_written(path)}{message}")

    def settings(self, raw: Any) -> Settings:
        self._check_keys(raw, Settings.__struct_fields__, [])
        plain = {key: raw[key] for key in ("mode", "runtime_dir") if key in raw}
        base = self.convert(plain, Settings, [])
        engines = tuple(self._engine(item, ["engines", i]) for i, item in self._items(raw, "engines"))
        schedules = tuple(self._schedule(item, ["schedules", i]) for i, item in self._items(raw, "schedules"))
        settings = msgspec.structs.replace(
            base,
            engines=engines,
            schedules=schedules,
            metrics=self._section(raw, "metrics", MetricsSettings),
            control=self._section(raw, "control", ControlSettings),
            log=self._section(raw, "log", LogSettings),
        )
        self._check_names(settings)
        self._check_overlaps(settings)
        return settings

    def _section(self, raw: Mapping[str, Any], key: str, kind: type[T]) -> T:
        return self.convert(raw.get(key) or {}, kind, [key])

    def _items(self, raw: Mapping[str, Any], key: str) -> list[tuple[int, Any]]:
        value = raw.get(key)
        if not isinstance(value, list) or not value:
            raise self.fail(
                [key], f"must be a list with at least one entry; `lachesis sample-config` shows one for {key}"
            )
        return list(enumerate(value))

    def _engine(self, raw: Any, path: list[str | int]) -> EngineSettings:
        self._require(raw, ("name", "driver", "process"), path)
        own = {"name", "driver", "process", "poll", "stale_after"}
        driver = self._find("drivers", raw["driver"], [*path, "driver"])
        self._check_keys(raw, [*own, *driver.options_type.__struct_fields__], path)
        process = self._process(raw["process"], driver, [*path, "process"])
        options = self.convert({k: v for k, v in raw.items() if k not in own}, driver.options_type, path)
        plain = {k: raw[k] for k in own - {"process"} if k in raw}
        partial = self.convert({**plain, "process": {"user": process.user}}, EngineSettings, path)
        return msgspec.structs.replace(partial, process=process, options=options)

    def _process(self, raw: Any, driver: Any, path: list[str | int]) -> ProcessSettings:
        if not isinstance(raw, dict) or not raw.get("user"):
            raise self.fail(
                path,
                "must name the account of the engine's worker processes, such as `user: flink`: "
                "a command line alone can be forged (`ps -o user= -p PID` tells)",
            )
        process = self.convert({**raw, "user": str(raw["user"])}, ProcessSettings, path)
        if not process.command:
            process = msgspec.structs.replace(process, command=driver.process_command)
        for key, expression in [("command", process.command), *(("exclude", e) for e in process.exclude)]:
            try:
                re.compile(expression)
            except re.error as error:
                raise self.fail([*path, key], f"{expression!r} is not a regular expression: {error}") from error
        try:
            _ = process.uid
        except KeyError as error:
            raise self.fail([*path, "user"], f"there is no account {process.user!r} on this machine") from error
        return process

    def _schedule(self, raw: Any, path: list[str | int]) -> ScheduleSettings:
        self._require(raw, ("name", "policy"), path)
        self._check_keys(raw, ("name", "policy", "translator", "match", "period"), path)
        policy_name, policy = self._part("policies", raw["policy"], [*path, "policy"])
        _, translator = self._part("translators", raw.get("translator", "nice"), [*path, "translator"])
        if not translator.options.normaliser:
            translator.normaliser = policy.normaliser
        clauses = raw.get("match", {})
        where: list[str | int] = [*path, "match"]
        clauses = clauses if isinstance(clauses, list) else [clauses]
        settings = ScheduleSettings(
            name=self.convert(raw["name"], str, [*path, "name"]),
            policy=policy,
            policy_name=policy_name,
            translator=translator,
            match=tuple(self.convert(clause or {}, Clause, where) for clause in clauses),
            period=self.convert(raw.get("period", "1s"), Duration, [*path, "period"]),
        )
        if settings.period < SHORTEST_PERIOD:
            raise self.fail([*path, "period"], f'{settings.period} is too short; the shortest period is "50ms"')
        return settings

    def _part(self, group: str, raw: Any, path: list[str | int]) -> tuple[str, Any]:
        """A policy or translator: a bare name, or a mapping with `name` and its options."""
        options = dict(raw) if isinstance(raw, dict) else {"name": raw}
        if "name" not in options:
            raise self.fail(path, "needs a name, such as `{name: qs}`")
        name = options.pop("name")
        cls = self._find(group, name, path)
        return str(name), cls(self.convert(options, cls.options_type, path))

    def _find(self, group: str, name: Any, path: list[str | int]) -> Any:
        try:
            return registry.find(group, str(name)).cls
        except registry.UnknownName as error:
            raise self.fail(path, str(error)) from error

    def _require(self, raw: Any, keys: Sequence[str], path: list[str | int]) -> None:
        if not isinstance(raw, dict):
            raise self.fail(path, f"must be a mapping with {', '.join(keys)}")
        missing = [key for key in keys if key not in raw]
        for key in raw:  # a typo explains a missing key better than its absence
            if missing and key not in keys and registry.nearest(str(key), missing):
                raise self.fail([*path, key], f"unknown key {key!r}{registry.suggest(str(key), missing)}")
        if missing:
            raise self.fail(path, f"needs {', '.join(missing)}")

    def _check_keys(self, raw: Any, known: Sequence[str], path: list[str | int]) -> None:
        if not isinstance(raw, dict):
            raise self.fail(path, f"must be a mapping with keys such as {', '.join(list(known)[:3])}")
        for key in raw:
            if key not in known:
                raise self.fail([*path, key], f"unknown key {key!r}{registry.suggest(str(key), known)}")

    def convert(self, raw: Any, kind: type[T], path: list[str | int]) -> T:
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            self._check_keys(raw, kind.__struct_fields__, path)
        try:
            return msgspec.convert(raw, kind, dec_hook=_custom_types)
        except msgspec.ValidationError as error:
            message, _, inner = str(error).partition(" - at `$")
            keys: list[str | int] = [key for key in re.split(r"[.\[\]`]+", inner) if key and not key.isdigit()]
            raise self.fail([*path, *keys], message) from error

    def _check_names(self, settings: Settings) -> None:
        named = {"engines": [e.name for e in settings.engines], "schedules": [s.name for s in settings.schedules]}
        for key, names in named.items():
            seen: set[str] = set()
            for index, name in enumerate(names):
                if name in seen:
                    raise self.fail(
                        [key, index, "name"], f"{name!r} is used twice in {key}; give each its own name"
                    )
                seen.add(name)
        for index, schedule in enumerate(settings.schedules):
            for clause in schedule.match:
                if not any(clause_names(clause, engine.name) for engine in settings.engines):
                    known = [engine.name for engine in settings.engines]
                    raise self.fail(
                        ["schedules", index, "match"],
                        f"engine {clause.engine!r} is not among the engines{registry.suggest(clause.engine, known)}",
                    )

    def _check_overlaps(self, settings: Settings) -> None:
        for (_, left), (index, right) in combinations(enumerate(settings.schedules), 2):
            if left.translator.mechanism != right.translator.mechanism:
                continue
            for mine in left.match:
                for yours in right.match:
                    if mine.overlaps(yours):
                        raise self.fail(
                            ["schedules", index, "match"],
                            f"schedules {left.name!r} ({mine}) and {right.name!r} ({yours}) could both move the "
                            f"{right.translator.mechanism} of one thread; narrow one of them so that they cannot meet",
                        )


def _custom_types(kind: type, value: Any) -> Any:
    if kind is Duration or kind is Size:
        return kind.parse(value)
    raise NotImplementedError(kind)


def _written(path: Sequence[str | int]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
    return f"{text}: " if text else ""


def _line_of(tree: yaml.Node | None, path: Sequence[str | int]) -> int:
    """The line of the deepest part of the path that exists."""
    node, line = tree, 1
    for part in path:
        if isinstance(node, yaml.MappingNode):
            found = next(((k, v) for k, v in node.value if k.value == str(part)), None)
            if found is None:
                break
            line, node = found[0].start_mark.line + 1, found[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
        else:
            break
    return line
