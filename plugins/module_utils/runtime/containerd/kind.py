# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""containerd as a kind of runtime: its configuration, and the edits that would bring the wanted one.

The edits are worked out here because containerd itself has to judge them, on a scratch copy, before they are planned.
"""
from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, FrozenSet, Mapping, Optional, Sequence

from ...core.host import Host
from ...core.journal import Journal
from ...core.plan import digest
from ..cri import CriStatus
from ..detection import kubelet_uses_systemd
from ..model import RESTART, WAIT, Answer, Edit, Kind, Problem, RuntimeObservation, Service, pending
from ..policy import RuntimePolicy
from . import distributions, k0s, rancher
from .change import Change, foreign_handler
from .configuration import DISABLED_NAMES, Configuration, handlers, load
from .gate import check_in_place, judge
from .writer import DROP_IN, CannotExtend, absent_edits, edited, foreign, present_edits


class Containerd(Kind):
    """containerd 1.6 to 2.x."""

    name = "containerd"
    title = "containerd"

    def observe(self, host: Host, journal: Journal, policy: RuntimePolicy, service: Service) -> RuntimeObservation:
        configuration = load(host, service.root, service.release[0])
        problem = _obstacle(host, service, configuration, policy)
        if problem:
            return RuntimeObservation(service, problem)
        try:
            change = (
                distributions.change(host, service, configuration, policy, kubelet_uses_systemd(host))
                if service.distribution else _plain(host, service, configuration, policy)
            )
            if change.preview:
                judge(host, service.binary, configuration, change.preview, policy)
        except CannotExtend as error:
            return RuntimeObservation(service, Problem(
                "%s holds its tables in a form that further lines cannot join (%s)" % (configuration.holder(), error),
                "a section of the CRI plugin with tables of its own, [plugins.\"%s\"...]" % configuration.cri_id,
                "write inline tables of the section as tables; nothing was changed"))
        cri = configuration.cri()
        return RuntimeObservation(
            service=service,
            problem=None,
            edits=change.edits,
            pending=change.pending or pending(host, journal, service, [file.path for file in configuration.files],
                                              effective_digest(configuration)),
            handlers=tuple(sorted(handlers(cri))),
            cdi=None if service.release < (1, 7) else bool(cri.get("enable_cdi", service.release >= (2, 0))),
        )

    def edited(self, path: str, text: Optional[str], parameters: Mapping[str, Any]) -> Optional[str]:
        if "block" in parameters:
            return rancher.edited(text, parameters["block"])
        return edited(path, text, {tuple(table): values for table, values in parameters["tables"]})

    def apply_verb(self, service: Service, edits: Sequence[Edit]) -> str:
        return WAIT if service.distribution == "k0s" else RESTART

    def effective_digest(self, host: Host, service: Service) -> str:
        return effective_digest(load(host, service.root, service.release[0]))

    def handlers(self, host: Host, service: Service) -> Optional[FrozenSet[str]]:
        found = frozenset(handlers(load(host, service.root, service.release[0]).cri()))
        return found | rancher.detected(host, service) if service.distribution in ("k3s", "rke2") else found

    def inspect(self, host: Host, service: Service) -> None:
        if service.distribution in distributions.RENDERED_AT_START:
            # what lies there is of the last start; what the next one renders was judged before the change
            return
        check_in_place(host, service.binary, load(host, service.root, service.release[0]))

    def answer(self, host: Host, service: Service) -> Answer:
        answer = super().answer(host, service)
        if answer.problem or service.distribution != "k0s" or not k0s.is_waited_for(host, service):
            return answer
        return replace(answer, problem="k0s has not restarted containerd since %s changed" % k0s.FOLDER)

    def running_handlers(self, status: CriStatus) -> Optional[FrozenSet[str]]:
        """1.x tells them in the configuration that it shows, 2.x in the status itself as well."""
        config = status.topic("config")
        runtimes = config.get("containerd", {}).get("runtimes") if isinstance(config, dict) else None
        if isinstance(runtimes, dict):
            return frozenset(runtimes)
        return super().running_handlers(status)


def _plain(
    host: Host, service: Service, configuration: Configuration, policy: RuntimePolicy
) -> Change:
    """The edits of a containerd whose root file is nobody's but the user's."""
    ours = host.read(DROP_IN)
    edits = tuple(
        present_edits(configuration, ours, service.root, policy, service.release, kubelet_uses_systemd(host),
                      _most_closed(host, service, configuration))
        if policy.present else absent_edits(configuration, ours)
    )
    return Change(edits, edits)


def _most_closed(host: Host, service: Service, configuration: Configuration) -> str:
    """The file whose mode a new file of ours takes: of the root and the one that our handler is like."""
    paths = [service.root, *filter(None, (configuration.source_of(name) for name in ("runc", "crun")))]
    return min(paths, key=lambda path: bin(host.mode(path) or 0o7777).count("1"))


def effective_digest(configuration: Configuration) -> str:
    """What of the files the daemon acts upon, as far as our change goes."""
    cri = configuration.cri()
    return digest([handlers(cri), cri.get("containerd", {}).get("default_runtime_name"), cri.get("enable_cdi"),
                   cri.get("cdi_spec_dirs")])


def _obstacle(host: Host, service: Service, configuration: Configuration, policy: RuntimePolicy) -> Optional[Problem]:
    checks = (_unsupported_release, _missing_import, _disabled, _old_format, _open_link, _read_only)
    for check in checks:
        problem = check(host, service, configuration)
        if problem:
            return problem
    # a distribution says where its generated file has a handler from
    return _foreign_handler(configuration, policy) if policy.present and not service.distribution else None


def _unsupported_release(_host: Host, service: Service, _configuration: Configuration) -> Optional[Problem]:
    if service.release >= (1, 6):
        return None
    return Problem("containerd %d.%d" % service.release, "containerd 1.6 or newer", "upgrade containerd")


def _missing_import(_host: Host, _service: Service, configuration: Configuration) -> Optional[Problem]:
    if not configuration.missing:
        return None
    return Problem("%s imports %s, which is not there: containerd will not start again"
                   % (configuration.importer_of(configuration.missing[0]), ", ".join(configuration.missing)),
                   "imports that are there", "put the file back or take it out of 'imports'")


def _disabled(_host: Host, _service: Service, configuration: Configuration) -> Optional[Problem]:
    if not configuration.disabled:
        return None
    return Problem("%s: disabled_plugins names %s" % (_disabler(configuration), ", ".join(configuration.disabled)),
                   "the CRI plugin, which Kubernetes talks to",
                   "take it out of disabled_plugins and restart containerd; the packages of Docker ship it that way")


def _old_format(_host: Host, service: Service, configuration: Configuration) -> Optional[Problem]:
    supported = (2,) if service.release < (2, 0) else (2, 3) if service.release < (2, 3) else (2, 3, 4)
    if configuration.version == 0 or configuration.version in supported:
        return None
    place = configuration.files[0].place("version")
    wanted = "version = %s for containerd %d.%d" % (" or ".join(map(str, supported)), *service.release)
    if configuration.version == 1:
        return Problem("%s: format version 1 (there is no 'version' key, or it says 1)" % place, wanted,
                       "rewrite it as version 2 (containerd, docs/PLUGINS.md, 'Version header')")
    return Problem("%s: version = %d" % (place, configuration.version), wanted,
                   "correct the version; containerd refuses this one")


def _disabler(configuration: Configuration) -> str:
    """Files, with their lines, that take the CRI plugin out."""
    return " and ".join(file.place("disabled_plugins") for file in configuration.files
                        if set(DISABLED_NAMES) & set(file.data.get("disabled_plugins", [])))


def _open_link(host: Host, _service: Service, configuration: Configuration) -> Optional[Problem]:
    """A link is followed, unless somebody else than root could bend it between our look and our write."""
    for file in configuration.files:
        target = host.resolve(file.path)
        for name in (os.path.dirname(file.path), os.path.dirname(target)):
            stat = host.stat(name)
            if stat is not None and target != file.path and (stat.st_uid not in (0, os.geteuid())
                                                             or stat.st_mode & 0o022):
                return Problem("%s is a link to %s, and others than root may write to %s" % (file.path, target, name),
                               "a configuration that root alone can change",
                               "put the file itself in the link's place, or correct the owner and mode of %s" % name)
    return None


def _read_only(host: Host, service: Service, configuration: Configuration) -> Optional[Problem]:
    for path in [file.path for file in configuration.files] or [service.root]:
        if host.is_read_only(os.path.dirname(host.resolve(path))):
            return Problem("%s lies on a file system that is mounted read-only" % path, "a file that can be changed",
                           "configure the handler where this file is made, such as the system image")
    return None


def _foreign_handler(configuration: Configuration, policy: RuntimePolicy) -> Optional[Problem]:
    if policy.adopt:
        return None
    for name, difference in foreign(configuration, policy).items():
        return Problem.of(foreign_handler(
            configuration.place_of(name), name, difference, policy.entries[name],
            "take that entry out (it may be a leftover of the GPU Operator or of nvidia-ctk), choose another handler, "
            "or let 'adopt' take it over"))
    return None
