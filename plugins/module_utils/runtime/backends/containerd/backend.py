# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""containerd as a backend: its configuration, what stands against a change of it, and the edits that are wanted."""
from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any, Dict, FrozenSet, Mapping, NamedTuple, Optional, Sequence, Tuple

from ....core.errors import GpuOpsError
from ....core.host import Host
from ....core.journal import Journal
from ....core.plan import digest
from ....core.refusal import Refusal
from ...backend import Backend, on_read_only_file_system
from ...cri import CriStatus
from ...detection import kubelet_uses_systemd
from ...memory import MEMORY
from ...model import RESTART, WAIT, Answer, Edit, Observation, Service, pending
from ...policy import Policy
from . import distributions, k0s, rancher
from .change import Change
from .configuration import DISABLED_NAMES, FORMATS, Configuration, handlers, load
from .judge import check_in_place, judge
from .writer import DROP_IN, CannotExtend, absent_edits, edited, foreign, present_edits


class OpenLink(NamedTuple):
    """A link among the files, and a directory on its way that others than root may write to."""

    path: str
    target: str
    directory: str


@dataclass(frozen=True)
class Files:
    """What containerd's edits are worked out from.

    configuration:  what containerd reads.
    ours:           text of our file beside the root, None where there is none.
    like:           the file that a new one of ours is to be as open as.
    systemd_cgroup: whether the kubelet uses systemd's control groups.
    open_link:      a link that is not followed, None if there is none.
    read_only:      a file that cannot be written for its file system, '' if there is none.
    beside:         what a distribution reads too.
    on_record:      whether a file that we have changed is on record.
    """

    configuration: Configuration
    ours: Optional[str]
    like: str
    systemd_cgroup: bool
    open_link: Optional[OpenLink]
    read_only: str
    beside: Optional[distributions.Beside]
    on_record: bool = False

    def to_dict(self) -> Dict[str, Any]:
        return {
            "files": {file.path: digest(file.text) for file in self.configuration.files},
            "missing": list(self.configuration.missing), "ours": digest(self.ours), "like": self.like,
            "systemd_cgroup": self.systemd_cgroup, "open_link": self.open_link, "read_only": self.read_only,
            "beside": None if self.beside is None else self.beside.to_dict(), "on_record": self.on_record,
        }


class Containerd(Backend[Files]):
    """containerd 1.6 to 2.x."""

    name = "containerd"
    title = "containerd"

    def observe(self, host: Host, journal: Journal, policy: Policy, service: Service) -> Observation:
        configuration = load(host, service.root, service.release[0])
        cri = configuration.cri()
        beside = distributions.read(host, service, configuration) if service.distribution else None
        return Observation(
            service=service,
            reading=Files(
                configuration=configuration,
                ours=host.read(DROP_IN),
                like=_most_closed(host, service, configuration),
                systemd_cgroup=kubelet_uses_systemd(host),
                open_link=_open_link(host, configuration),
                read_only=_read_only(host, service, configuration),
                beside=beside,
                on_record=bool(journal.originals(MEMORY))),
            pending=pending(host, journal, policy.present, service, [file.path for file in configuration.files],
                            effective_digest(configuration))
            or distributions.brings(service, configuration, beside, policy),
            handlers=tuple(sorted(handlers(cri))),
            cdi=None if service.release < (1, 7) else bool(cri.get("enable_cdi", service.release >= (2, 0))),
        )

    def edits(self, service: Service, reading: Files, policy: Policy) -> Tuple[Edit, ...]:
        return _change(service, reading, policy).edits

    def judge(self, host: Host, service: Service, reading: Files, policy: Policy) -> None:
        obstacle = _obstacle(service, reading, policy)
        if obstacle is not None:
            raise GpuOpsError.because([obstacle])
        preview = _change(service, reading, policy).preview
        if preview:
            judge(host, service.binary, reading.configuration, preview, policy)

    def edited(self, path: str, text: Optional[str], parameters: Mapping[str, Any]) -> Optional[str]:
        if "block" in parameters:
            return rancher.edited(text, parameters["block"])
        return edited(path, text, {tuple(table): values for table, values in parameters["tables"]})

    def apply_verb(self, service: Service, reading: Files, edits: Sequence[Edit]) -> str:
        return WAIT if service.distribution == "k0s" else RESTART

    def effective_digest(self, host: Host, service: Service) -> str:
        return effective_digest(load(host, service.root, service.release[0]))

    def handlers(self, host: Host, service: Service) -> Optional[FrozenSet[str]]:
        found = frozenset(handlers(load(host, service.root, service.release[0]).cri()))
        return found | set(rancher.found(host, service)) if service.distribution in ("k3s", "rke2") else found

    def inspect(self, host: Host, service: Service) -> None:
        if service.distribution in distributions.RENDERED_AT_START:
            # what lies there is of the last start; what the next one renders was judged before the change
            return
        check_in_place(host, service.binary, load(host, service.root, service.release[0]))

    def answer(self, host: Host, service: Service) -> Answer:
        answer = super().answer(host, service)
        if answer.problem or service.distribution != "k0s" or not k0s.is_waited_for(host, service):
            return answer
        return replace(answer, problem="k0s has not restarted containerd since %s changed" % k0s.DIRECTORY)

    def running_handlers(self, status: CriStatus) -> Optional[FrozenSet[str]]:
        """1.x tells them in the configuration that it shows, 2.x in the status itself as well."""
        config = status.topic("config")
        runtimes = config.get("containerd", {}).get("runtimes") if isinstance(config, dict) else None
        if isinstance(runtimes, dict):
            return frozenset(runtimes)
        return super().running_handlers(status)


def _change(service: Service, reading: Files, policy: Policy) -> Change:
    """Pure. Raises GpuOpsError where it is not safe; nothing stands against taking nothing out."""
    obstacle = _obstacle(service, reading, policy)
    if obstacle is not None and (policy.present or _made(service, reading, policy).edits):
        raise GpuOpsError.because([obstacle])
    return _made(service, reading, policy)


def _made(service: Service, reading: Files, policy: Policy) -> Change:
    configuration = reading.configuration
    try:
        if service.distribution:
            if reading.beside is None and not (policy.present or reading.on_record):
                # a service that was never started, where we have never been
                return Change()
            return distributions.change(service, configuration, reading.beside, policy, reading.systemd_cgroup)
        return _plain(service, reading, policy)
    except CannotExtend as error:
        raise GpuOpsError(
            "runtime.inline_tables",
            found="%s holds its tables in a form that further lines cannot join (%s)" % (configuration.holder(), error),
            wanted="a section of the CRI plugin with tables of its own, [plugins.\"%s\"...]" % configuration.cri_id,
            remedy="write inline tables of the section as tables; nothing was changed",
        ) from error


def _plain(service: Service, reading: Files, policy: Policy) -> Change:
    """The edits of a containerd whose root file is nobody's but the user's."""
    configuration = reading.configuration
    edits = tuple(
        present_edits(configuration, reading.ours, service.root, policy, service.release, reading.systemd_cgroup,
                      reading.like)
        if policy.present else absent_edits(configuration, reading.ours)
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


def _open_link(host: Host, configuration: Configuration) -> Optional[OpenLink]:
    """A link is followed, unless somebody else than root could bend it between our look and our write."""
    for file in configuration.files:
        target = host.resolve(file.path)
        for name in (os.path.dirname(file.path), os.path.dirname(target)):
            stat = host.stat(name)
            if stat is not None and target != file.path and (stat.st_uid not in (0, os.geteuid())
                                                             or stat.st_mode & 0o022):
                return OpenLink(file.path, target, name)
    return None


def _read_only(host: Host, service: Service, configuration: Configuration) -> str:
    """A file that lies on a file system mounted read-only, '' if none does."""
    paths = [file.path for file in configuration.files] or [service.root]
    return next((path for path in paths if host.is_read_only(os.path.dirname(host.resolve(path)))), "")


def _obstacle(service: Service, reading: Files, policy: Policy) -> Optional[Refusal]:
    configuration = reading.configuration
    found = (_unsupported_release(service) or _missing_import(configuration) or _disabled(configuration)
             or _old_format(service, configuration) or _out_of_reach(reading))
    # a distribution says where its generated file has a handler from
    if found is None and policy.present and not service.distribution:
        return _foreign_handler(configuration, policy)
    return found


def _unsupported_release(service: Service) -> Optional[Refusal]:
    oldest = min(FORMATS)
    if service.release >= oldest:
        return None
    return Refusal("runtime.containerd_too_old", "containerd %d.%d" % service.release,
                   "containerd %d.%d or newer" % oldest, "upgrade containerd")


def _missing_import(configuration: Configuration) -> Optional[Refusal]:
    if not configuration.missing:
        return None
    return Refusal(
        "runtime.import_missing", "%s imports %s, which is not there: containerd will not start again"
        % (configuration.importer_of(configuration.missing[0]), ", ".join(configuration.missing)),
        "imports that are there", "put the file back or take it out of `imports`")


def _disabled(configuration: Configuration) -> Optional[Refusal]:
    if not configuration.disabled:
        return None
    return Refusal(
        "runtime.cri_disabled",
        "%s: disabled_plugins names %s" % (_disabler(configuration), ", ".join(configuration.disabled)),
        "the CRI plugin, which Kubernetes talks to",
        "take it out of `disabled_plugins` and restart containerd; the packages of Docker ship it that way")


def _old_format(service: Service, configuration: Configuration) -> Optional[Refusal]:
    supported = FORMATS[max(since for since in FORMATS if since <= service.release)]
    if configuration.version == 0 or configuration.version in supported:
        return None
    place = configuration.files[0].place("version")
    wanted = "version = %s for containerd %d.%d" % (" or ".join(map(str, supported)), *service.release)
    if configuration.version == 1:
        return Refusal(
            "runtime.containerd_format_1", "%s: format version 1 (there is no 'version' key, or it says 1)" % place,
            wanted, "rewrite it as version 2 (containerd, docs/PLUGINS.md, 'Version header')")
    return Refusal("runtime.containerd_format_unknown", "%s: version = %d" % (place, configuration.version), wanted,
                   "correct the version; containerd refuses this one")


def _disabler(configuration: Configuration) -> str:
    """Files, with their lines, that take the CRI plugin out."""
    return " and ".join(file.place("disabled_plugins") for file in configuration.files
                        if set(DISABLED_NAMES) & set(file.data.get("disabled_plugins", [])))


def _out_of_reach(reading: Files) -> Optional[Refusal]:
    link = reading.open_link
    if link is not None:
        return Refusal(
            "runtime.open_link", "%s is a link to %s, and others than root may write to %s"
            % (link.path, link.target, link.directory), "a configuration that root alone can change",
            "put the file itself in the link's place, or correct the owner and mode of %s" % link.directory)
    return on_read_only_file_system(reading.read_only) if reading.read_only else None


def _foreign_handler(configuration: Configuration, policy: Policy) -> Optional[Refusal]:
    if policy.adopt:
        return None
    for name, difference in foreign(configuration, policy).items():
        return Refusal(
            "runtime.foreign_handler",
            "%s defines the handler '%s' with %s" % (configuration.place_of(name), name, difference),
            "BinaryName = %s" % policy.entries[name],
            "take that entry out (it may be a leftover of the GPU Operator or of nvidia-ctk), choose another "
            "`handler`, or let `adopt` take it over", "adopt")
    return None
