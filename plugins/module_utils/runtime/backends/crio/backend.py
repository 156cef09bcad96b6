# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""CRI-O as a backend: one file of ours in its directory, and a restart, over which containers go on."""
from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Dict, FrozenSet, List, Mapping, Optional, Sequence, Set, Tuple

from ....core.errors import GpuOpsError
from ....core.host import Host
from ....core.journal import Journal
from ....core.plan import digest
from ....core.refusal import Refusal
from ...backend import Backend, on_read_only_file_system
from ...cri import CriClient
from ...model import RESTART, Answer, Edit, Observation, Service, pending
from ...policy import Policy
from . import judge, startup
from .configuration import COMMAND_LINE, Configuration, load_of
from .writer import OCI, conflict, finds_monitor, has_source, monitor_of, our_paths, wanted

# No older one was looked at
OLDEST = (1, 28)
SUFFIXES = (".conf", ".toml")


@dataclass(frozen=True)
class Files:
    """What CRI-O's edits are worked out from.

    configuration: what the running daemon reads.
    links:         {path: target} of those that stand in the place of a file of ours.
    read_only:     whether the directory cannot be written.
    built_in:      CRI-O's own handlers, which its program alone tells; asked for only where no file defines one to
                   take over from.
    """

    configuration: Configuration
    links: Mapping[str, str]
    read_only: bool
    built_in: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> Dict[str, Any]:
        return {
            "files": {file.path: digest(file.text) for file in self.configuration.files}, "links": dict(self.links),
            "read_only": self.read_only, "built_in": digest(self.built_in), "monitor": self.configuration.monitor,
            "options": digest(self.configuration.daemon.options),
        }


class Crio(Backend[Files]):
    """CRI-O 1.28 and newer."""

    name = "crio"
    title = "CRI-O"

    def observe(self, host: Host, journal: Journal, policy: Policy, service: Service) -> Observation:
        configuration = load_of(host, service)
        links = {path: host.link(path) for path in our_paths(configuration)}
        reading = Files(
            configuration, {path: target for path, target in links.items() if target is not None},
            host.is_read_only(host.resolve(configuration.directory)))
        if policy.present and not has_source(configuration) and _obstacle(service, reading, policy) is None:
            reading = replace(reading, built_in=judge.built_in(host, service.binary, configuration))
        return Observation(
            service=service,
            reading=reading,
            pending=pending(host, journal, policy.present, service, [file.path for file in configuration.files],
                            _digest(configuration)) or _runs_with_others(host, service, configuration, policy),
            handlers=tuple(sorted(configuration.handlers())),
            cdi=True,
        )

    def edits(self, service: Service, reading: Files, policy: Policy) -> Tuple[Edit, ...]:
        """What is written comes before what is removed, so that a handler is never missing between the two."""
        obstacle = _obstacle(service, reading, policy)
        if obstacle is not None and (policy.present or {*our_paths(reading.configuration)} & {
                file.path for file in reading.configuration.files}):
            raise GpuOpsError.because([obstacle])
        configuration = reading.configuration
        texts = {file.path: file.text for file in configuration.files}
        # What we take over from a handler is as open as the file that defines it
        source = configuration.source_of("runc") or configuration.source_of("crun")
        like = source if source not in (*our_paths(configuration), COMMAND_LINE) else ""
        changes = [(path, texts.get(path), text)
                   for path, text in wanted(configuration, policy, reading.built_in).items()]
        edits = [Edit(path, before, after, before, after, like=like)
                 for path, before, after in changes if before != after]
        return tuple(sorted(edits, key=lambda edit: edit.after is None))

    def notes(self, service: Service, reading: Files, policy: Policy, edits: Sequence[Edit]) -> Tuple[str, ...]:
        return _notes(reading.configuration)

    def judge(self, host: Host, service: Service, reading: Files, policy: Policy) -> None:
        configuration = reading.configuration
        changes = {edit.path: edit.after for edit in self.edits(service, reading, policy)}
        if changes:
            judge.judge(host, service.binary, configuration, changes, policy)
        if service.active:
            startup.check(host, configuration.but(changes), policy.entries if policy.present else ())

    def edited(self, path: str, text: Optional[str], parameters: Mapping[str, Any]) -> Optional[str]:
        """CRI-O's other files are never edited."""
        return text

    def apply_verb(self, service: Service, reading: Files, edits: Sequence[Edit]) -> str:
        """A reload (SIGHUP) is not enough: CRI-O then shows the new handlers and starts no pod with them.

        server.New keeps one copy of the configuration, which a reload changes, and the part that runs containers
        another (cri-o issue 10202); and a reload forgets what the command line says (issue 7586).
        """
        return RESTART

    def effective_digest(self, host: Host, service: Service) -> str:
        return _digest(load_of(host, service))

    def handlers(self, host: Host, service: Service) -> Optional[FrozenSet[str]]:
        return frozenset(load_of(host, service).handlers())

    def inspect(self, host: Host, service: Service) -> None:
        configuration = load_of(host, service)
        judge.effective(host, service.binary, configuration)
        startup.check(host, configuration)

    def answer(self, host: Host, service: Service) -> Answer:
        """CRI-O leaves a handler out whose program is not there; the file has it, for the day when it comes."""
        told = super().answer(host, service)
        if told.problem or told.handlers is None:
            return told
        configuration = load_of(host, service)
        waiting = set(configuration.handlers()) - _with_program(host, configuration)
        return Answer("", told.handlers | waiting, told.containers)


def _digest(configuration: Configuration) -> str:
    runtime = configuration.runtime()
    return digest([runtime["runtimes"], runtime.get("default_runtime"), runtime.get("cdi_spec_dirs")])


def _runs_with_others(
    host: Host, service: Service, configuration: Configuration, policy: Policy
) -> bool:
    """Whether the running daemon has other handlers of our names than its files, or one of them for its default.

    So a run that was killed after it took our file away is completed by the next, and a handler that waited for its
    program comes into effect. Where ours are to go, one of others that the daemon lacks waits for a restart of theirs.
    """
    if not service.active:
        return False
    try:
        status = CriClient(host.path(service.socket)).status()
    except GpuOpsError:
        return False
    there = _with_program(host, configuration) & set(policy.entries)
    config = status.topic("config")
    told = config.get("crio") if isinstance(config, dict) else None
    default = told.get("DefaultRuntime") if isinstance(told, dict) else None
    known = set(status.handlers) & set(policy.entries)
    others = status.handlers and (there != known if policy.present else known - there)
    return bool(others or default in policy.entries and default != configuration.runtime().get("default_runtime"))


def _with_program(host: Host, configuration: Configuration) -> Set[str]:
    """Handlers whose program is there: those that CRI-O keeps at its start."""
    return {name for name, entry in configuration.handlers().items()
            if isinstance(entry, dict) and startup.has_program(host, configuration, name, entry)}


def _obstacle(service: Service, reading: Files, policy: Policy) -> Optional[Refusal]:
    configuration = reading.configuration
    if reading.read_only:
        return on_read_only_file_system(configuration.directory)
    for path, target in reading.links.items():
        return Refusal("runtime.linked", "%s is a link to %s" % (path, target), "a file of ours, or none",
                       "take the link away; what it leads to is not ours")
    if not policy.present:
        return None
    if service.release < OLDEST:
        return Refusal("runtime.crio_too_old", "CRI-O %d.%d" % service.release, "CRI-O %d.%d or newer" % OLDEST,
                       "upgrade CRI-O")
    if not service.active:
        return Crio().not_running(service)
    return _foreign_value(configuration, policy) or _no_monitor(configuration)


def _foreign_value(configuration: Configuration, policy: Policy) -> Optional[Refusal]:
    source, value = conflict(configuration, policy)
    if not value:
        return None
    option = "handler"
    if source == COMMAND_LINE:
        remedy = ("take the option out of the unit of CRI-O (CRIO_CONFIG_OPTIONS, a drop-in), or choose another "
                  "`handler`")
    elif policy.adopt:
        option, remedy = "", "rename the file: it is read after any name that ours has, so it wins"
    else:
        option = "adopt"
        remedy = ("take that out of the file (it may be a leftover of the GPU Operator, of nvidia-ctk or a backup: "
                  "CRI-O reads every file of the directory whatever it is called), choose another `handler`, or let "
                  "`adopt` take it over")
    return Refusal(
        "runtime.crio_foreign_value", "%s has %s" % (source, value),
        "; ".join("%s: runtime_path = %s" % pair for pair in policy.entries.items()), remedy, option)


def _no_monitor(configuration: Configuration) -> Optional[Refusal]:
    """A handler without a monitor keeps the whole of CRI-O from starting (RuntimeConfig.Validate of pkg/config)."""
    known = configuration.handlers()
    if finds_monitor(configuration) or monitor_of(known, configuration):
        return None
    return Refusal(
        "runtime.crio_without_monitor", "conmon is in none of %s, and no handler of type %s names another" % (
            ", ".join(configuration.daemon.path), " or ".join(each for each in OCI if each)),
        "the monitor of containers, which CRI-O needs for a handler to start with",
        "install conmon, or name it: `monitor_path = ...` in a handler runc below %s" % configuration.directory)


def _notes(configuration: Configuration) -> Tuple[str, ...]:
    stray: List[str] = [file.path for file in configuration.files
                        if file.path != configuration.root and not file.path.endswith(SUFFIXES)]
    return tuple("CRI-O reads %s too, whatever its name; a backup belongs elsewhere." % path for path in stray)
