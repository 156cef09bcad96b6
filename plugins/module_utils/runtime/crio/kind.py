# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""CRI-O as a kind of container runtime: one file of ours in its folder, and a reload that it answers while it runs."""
from __future__ import annotations

import os
from typing import Any, List, Mapping, Optional, Sequence, Tuple

from ...core.errors import GpuOpsError
from ...core.host import Host
from ...core.journal import Journal
from ...core.plan import digest
from ..detection import option
from ..model import RELOAD, Edit, Kind, Problem, RuntimeObservation, Service, pending
from ..policy import RuntimePolicy
from . import gate
from .configuration import FOLDER, ROOT, Configuration, load
from .writer import conflict, drop_in_path, has_source, wanted_text

# The first release in which a reload takes up handlers
OLDEST = (1, 28)
SUFFIXES = (".conf", ".toml")


class Crio(Kind):
    """A reload (SIGHUP) makes CRI-O read handlers, their default and the CDI folders again (pkg/config/reload.go)."""

    name = "crio"
    title = "CRI-O"

    def observe(self, host: Host, journal: Journal, policy: RuntimePolicy, service: Service) -> RuntimeObservation:
        try:
            configuration = _load(host, service)
            problem = _obstacle(host, service, configuration, policy)
            if problem is not None:
                return RuntimeObservation(service, problem)
            edits = _edits(host, service, configuration, policy)
            for edit in edits:
                gate.judge(host, service.binary, configuration, edit.after, policy)
        except GpuOpsError as error:
            return RuntimeObservation(service, Problem.of(error))
        return RuntimeObservation(
            service=service,
            problem=None,
            edits=edits,
            pending=pending(host, journal, service, [file.path for file in configuration.files],
                            _digest(configuration)),
            handlers=tuple(sorted(configuration.handlers())),
            cdi=True,
            notes=_notes(configuration),
        )

    def edited(self, path: str, text: Optional[str], parameters: Mapping[str, Any]) -> Optional[str]:
        """CRI-O's other files are never edited."""
        return text

    def apply_verb(self, service: Service, edits: Sequence[Edit]) -> str:
        return RELOAD

    def effective_digest(self, host: Host, service: Service) -> str:
        return _digest(_load(host, service))

    def inspect(self, host: Host, service: Service) -> None:
        gate.effective(host, service.binary, _load(host, service))


def _load(host: Host, service: Service) -> Configuration:
    return load(host, service.root or ROOT, option(service.arguments, "--config-dir", "-d") or FOLDER)


def _digest(configuration: Configuration) -> str:
    runtime = configuration.runtime()
    return digest([runtime["runtimes"], runtime.get("default_runtime"), runtime.get("cdi_spec_dirs")])


def _edits(
    host: Host, service: Service, configuration: Configuration, policy: RuntimePolicy
) -> Tuple[Edit, ...]:
    path = drop_in_path(configuration)
    before, after = host.read(path), None
    if policy.present:
        own = {} if has_source(configuration) else gate.built_in(host, service.binary, configuration)
        after = wanted_text(configuration, policy, own)
    if before == after:
        return ()
    # What we take over from a handler is as open as the file that defines it
    like = configuration.source_of("runc") or configuration.source_of("crun")
    return (Edit(path, before, after, before, after, like=like if like != path else ""),)


def _obstacle(host: Host, service: Service, configuration: Configuration, policy: RuntimePolicy) -> Optional[Problem]:
    folder = host.resolve(configuration.folder)
    while folder != "/" and not host.is_dir(folder):
        folder = os.path.dirname(folder)
    if os.statvfs(host.path(folder)).f_flag & os.ST_RDONLY:
        return Problem("%s lies on a file system that is mounted read-only" % configuration.folder,
                       "a folder that can be written", "configure the handler where the system image is made")
    if not policy.present:
        return None
    if service.release < OLDEST:
        return Problem("CRI-O %d.%d" % service.release, "CRI-O %d.%d or newer" % OLDEST, "upgrade CRI-O")
    if not service.active:
        return Problem("%s is not running" % service.unit, "a running CRI-O, so that a change can be proved",
                       "start it: systemctl start %s" % service.unit)
    path, told = conflict(configuration, policy)
    if not told:
        return None
    return Problem(
        "%s has %s" % (path, told),
        "; ".join("%s: runtime_path = %s" % pair for pair in policy.entries.items()),
        "take that out of the file (it may be a leftover of the GPU Operator, of nvidia-ctk or a backup: CRI-O reads "
        "every file of the folder whatever it is called), or choose another handler",
    )


def _notes(configuration: Configuration) -> Tuple[str, ...]:
    stray: List[str] = [file.path for file in configuration.files
                        if file.path != configuration.root and not file.path.endswith(SUFFIXES)]
    return tuple("CRI-O reads %s too, whatever its name; a backup belongs elsewhere." % path for path in stray)
