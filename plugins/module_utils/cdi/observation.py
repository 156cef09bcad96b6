# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is there of the CDI specification, and the devices that it has to describe."""
from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ..core.facts import CUDA_NODES, HostFacts
from ..core.host import CommandFailed, Host
from ..core.journal import Journal
from ..core.plan import Step
from ..core.steps import restore_steps
from ..hardware.boot import loaded_kind
from ..hardware.node import control_nodes, library_version, toolkit_version
from ..hardware.nvml import NvmlReading, reading_of
from . import links
from .boot import OUTPUT, REFRESH_ENVIRONMENT, REFRESH_SERVICE, RULE_FILE, UNIT_FILE, WANTS
from .policy import Policy
from .spec import KIND, PATH, Spec, missing_from, outdated, read_spec

# Where the driver is, in place of '/' (nvidia-ctk cdi generate, --driver-root)
DRIVER_ROOT = "NVIDIA_CTK_DRIVER_ROOT"
# Some devices, in place of all (nvidia-ctk cdi generate, --device-id)
CHOSEN_DEVICES = "NVIDIA_CTK_CDI_GENERATE_DEVICE_IDS"
REFRESH_UNITS = ("nvidia-cdi-refresh.path", REFRESH_SERVICE)
GENERATOR = "nvidia-ctk"
# Where the toolkit's packages put it
GENERATOR_PATH = "/usr/bin/" + GENERATOR
GENERATE_COMMAND = (GENERATOR, "--quiet", "cdi", "generate", "--format")
# Seconds; it takes a tenth of one, and longer where it has to initialise GPUs that nobody holds
GENERATE_LIMIT = 120.0


@dataclass(frozen=True)
class Observation:
    """The CDI specification, the devices that answered, and what keeps the one true to the other at a boot.

    path:            where the specification is, or will be.
    spec:            what it describes, None when it is absent.
    driver:          version of the driver that answered, '' when none did.
    reasons:         why the specification does not describe the devices that answered.
    toolkit:         version of the installed toolkit, '' if none.
    units:           (unit, is there, is enabled, is active) of the toolkit's refresh units.
    elsewhere:       other files that describe GPUs under the same kind.
    conflicting:     those of them that the container runtime gives no GPUs for: same directory, same names.
    generated:       whether we wrote the specification, or units did that came with a toolkit of ours.
    enabled_by_us:   units that we enabled (only read when the specification is not wanted).
    loaded:          version of the loaded driver, '' if none.
    module:          its kernel module, as HostFacts.module_loaded.
    made_before:     whether the installed toolkit came after the specification.
    undivided:       whether every GPU that answers is in MIG mode and has no MIG device.
    unlinked:        device nodes without a right link under /dev/char.
    links:           links under /dev/char to device nodes, where we made them (only read when they are not wanted).
    generator:       path of nvidia-ctk.
    files:           {path: text or None} of our own files for the boot.
    boot_enabled:    whether our own unit is enabled.
    texts:           {path: text} of elsewhere.
    restore:         steps that put back the files we changed (only read when the specification is not wanted).
    driver_root:     where the administrator has the refresh unit look for the driver, '' for the usual place.
    """

    path: str
    spec: Optional[Spec]
    driver: str
    reasons: Tuple[str, ...]
    toolkit: str
    units: Tuple[Tuple[str, bool, bool, bool], ...]
    elsewhere: Tuple[str, ...]
    generated: bool
    enabled_by_us: Tuple[str, ...]
    conflicting: Tuple[str, ...] = ()
    loaded: str = ""
    module: str = ""
    made_before: bool = False
    undivided: bool = False
    unlinked: Tuple[str, ...] = ()
    links: Tuple[str, ...] = ()
    generator: str = GENERATOR_PATH
    files: Mapping[str, Optional[str]] = field(default_factory=dict)
    boot_enabled: bool = False
    texts: Mapping[str, str] = field(default_factory=dict)
    restore: Tuple[Step, ...] = ()
    driver_root: str = ""

    def to_dict(self) -> Dict[str, Any]:
        return dict(asdict(self), restore=[step.to_dict() for step in self.restore])


def observe(host: Host, journal: Journal, policy: Policy, facts: HostFacts) -> Observation:
    path = spec_path(host)
    text = host.read(path)
    spec = read_spec(text) if text is not None else None
    loaded = (host.read("/sys/module/nvidia/version") or "").strip()
    reading = reading_of(library_version(host), loaded) if policy.present else NvmlReading()
    others = elsewhere(host, path)
    memory = journal.recall("cdi")
    generator = host.which(GENERATOR)
    return Observation(
        path=path,
        spec=spec,
        driver=reading.driver_version,
        reasons=stale(host, spec, reading) if spec else (),
        toolkit=toolkit_version(host),
        units=tuple(_unit(host, name) for name in REFRESH_UNITS),
        elsewhere=tuple(others),
        conflicting=conflicting(path, spec, others) if spec else (),
        generated=bool(memory.get("generated")) or bool(journal.packages("toolkit")) and not policy.present,
        enabled_by_us=() if policy.present else tuple(memory.get("enabled", ())),
        loaded=loaded,
        module=loaded_kind(host),
        made_before=_made_before(host, path, generator, memory.get("generator", "")),
        undivided=_undivided(reading),
        unlinked=links.unlinked(host) + links.misleading(host),
        links=links.ours(host) if memory.get("linked") and not policy.present else (),
        generator=generator or GENERATOR_PATH,
        files={name: host.read(name) for name in (UNIT_FILE, RULE_FILE)},
        boot_enabled=host.link(WANTS) is not None,
        texts={name: host.read(name) or "" for name in others} if policy.remove_others else {},
        restore=() if policy.present else tuple(restore_steps("cdi", host, journal)),
        driver_root=refresh_environment(host).get(DRIVER_ROOT, ""),
    )


def stale(host: Host, spec: Spec, reading: NvmlReading) -> Tuple[str, ...]:
    """Why a specification does not describe the host's devices and files as they are.

    The last word has the program that makes specifications: one that would be made now is compared with it.
    """
    gone = [path for path in (*spec.nodes, *spec.sources, *spec.hooks) if not host.exists(path)]
    reasons = ["it names %s, which is not there" % path for path in gone[:1]]
    if reading.error or not reading.driver_version:
        return tuple(reasons)
    if spec.driver and spec.driver != reading.driver_version:
        reasons.append("it is for driver %s, %s is loaded" % (spec.driver, reading.driver_version))
    if not refresh_environment(host).get(CHOSEN_DEVICES):
        reasons += outdated(spec, [gpu for gpu in reading.gpus if not gpu.error])
    reasons += unnamed_nodes(spec, control_nodes(host))
    return tuple(reasons or ([] if _undivided(reading) else _compared_with_a_new_one(host, spec)))


def unnamed_nodes(spec: Spec, nodes: Sequence[str]) -> List[str]:
    """A specification that was made before these nodes were: without them every CUDA program fails (999)."""
    return missing_from(spec, Spec("", (), tuple(dict.fromkeys((*CUDA_NODES, *nodes))), ()))


def _compared_with_a_new_one(host: Host, spec: Spec) -> List[str]:
    if host.which(GENERATOR) is None:
        return []
    try:
        done = host.run([*GENERATE_COMMAND, "yaml"], env=refresh_environment(host), timeout=GENERATE_LIMIT)
    except CommandFailed as failure:
        return ["a new one cannot be made: %s" % failure.found]
    return missing_from(spec, read_spec(done.stdout))


def _undivided(reading: NvmlReading) -> bool:
    answering = [gpu for gpu in reading.gpus if not gpu.error]
    return bool(answering) and all(gpu.is_divided and not gpu.mig_devices for gpu in answering)


def _made_before(host: Host, path: str, generator: Optional[str], remembered: str) -> bool:
    """Whether another toolkit was there when the specification came: another one than we remember having used, or else
    by the times. A specification of the future, made while a clock was ahead, is taken for an old one once.
    """
    program, spec = host.stat(generator) if generator else None, host.stat(path)
    if program is None or spec is None:
        return False
    if remembered:
        return generator_id(host, generator) != remembered
    return program.st_ctime > spec.st_mtime or spec.st_mtime > time.time()


def generator_id(host: Host, generator: Optional[str]) -> str:
    """What tells one installed nvidia-ctk from the next, '' without any: a program that a package puts there has the
    time of its build as that of its modification, but never another's time of change."""
    program = host.stat(generator) if generator else None
    return "" if program is None else "%d %d" % (program.st_size, program.st_ctime_ns)


def _unit(host: Host, name: str) -> Tuple[str, bool, bool, bool]:
    state = host.unit(name)
    return (
        name,
        state.get("LoadState") == "loaded",
        # "systemctl show" repeats what the manager knew at its last reload
        host.run(["systemctl", "is-enabled", name], check=False).stdout.strip() == "enabled",
        state.get("ActiveState") == "active",
    )


def refresh_environment(host: Host) -> Dict[str, str]:
    """What the administrator set for the refresh unit (systemd.exec(5), EnvironmentFile); options of nvidia-ctk."""
    lines = (line.strip() for line in (host.read(REFRESH_ENVIRONMENT) or "").splitlines())
    pairs = (line.partition("=") for line in lines if line.startswith("NVIDIA_CTK_") and "=" in line)
    found = {key.strip(): value.strip().strip("\"'") for key, _equals, value in pairs}
    found.pop(OUTPUT, None)
    return found


def spec_path(host: Host) -> str:
    """Where the refresh unit writes, so that it and we keep one file."""
    for line in reversed((host.read(REFRESH_ENVIRONMENT) or "").splitlines()):
        key, _equals, value = line.strip().partition("=")
        value = value.strip().strip("\"'")
        if key.strip() == OUTPUT and value.startswith("/"):
            return value
    return PATH


def elsewhere(host: Host, own: str) -> Dict[str, Spec]:
    """Other files that describe GPUs under the same kind, in the directories that container runtimes read."""
    found = {}
    for path in [path for pattern in ("/etc/cdi/*", "/var/run/cdi/*") for path in host.glob(pattern)]:
        if host.resolve(path) != host.resolve(own) and path.endswith((".yaml", ".yml", ".json")):
            spec = read_spec(host.read(path) or "")
            if spec.kind == KIND:
                found[path] = spec
    return found


def conflicting(path: str, spec: Spec, others: Mapping[str, Spec]) -> Tuple[str, ...]:
    """Files beside the specification that name a device of it: the runtime then gives that device to nobody.

    Between directories the later one wins (container-device-interface, pkg/cdi, "CDI Spec Conflicts").
    """
    directory = os.path.dirname(path)
    return tuple(other for other, described in others.items()
                 if os.path.dirname(other) == directory and set(described.names).intersection(spec.names))
