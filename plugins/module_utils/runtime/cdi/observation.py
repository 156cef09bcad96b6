# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is there of the CDI specification, and the devices that it has to describe."""
from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any, Dict, Mapping, Optional, Tuple

from ...core.host import Host
from ...core.journal import Journal
from ...hardware.nvml import NvmlReading, read_nvml
from .policy import CdiPolicy
from .spec import KIND, PATH, Spec, outdated, read_spec

REFRESH_SERVICE = "nvidia-cdi-refresh.service"
REFRESH_ENVIRONMENT = "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env"
OUTPUT = "NVIDIA_CTK_CDI_OUTPUT_FILE_PATH"
REFRESH_UNITS = ("nvidia-cdi-refresh.path", REFRESH_SERVICE)


@dataclass(frozen=True)
class CdiObservation:
    """
    path:            where the specification is, or will be.
    spec:            what it describes, None when it is absent.
    driver:          version of the driver that answered, '' when none did.
    reasons:         why the specification does not describe the devices that answered.
    toolkit:         whether nvidia-ctk is installed.
    units:           (unit, is there, is enabled, is active) of the toolkit's refresh units.
    elsewhere:       other files that describe GPUs under the same kind.
    conflicting:     those of them that the container runtime gives no GPUs for: same folder, same names.
    generated:       whether we wrote the specification.
    enabled_by_us:   refresh units that we enabled.
    """

    path: str
    spec: Optional[Spec]
    driver: str
    reasons: Tuple[str, ...]
    toolkit: bool
    units: Tuple[Tuple[str, bool, bool, bool], ...]
    elsewhere: Tuple[str, ...]
    generated: bool
    enabled_by_us: Tuple[str, ...]
    conflicting: Tuple[str, ...] = ()

    def to_dict(self) -> Dict[str, Any]:
        return asdict(self)


def observe(host: Host, journal: Journal, policy: CdiPolicy) -> CdiObservation:
    path = spec_path(host)
    text = host.read(path)
    spec = read_spec(text) if text is not None else None
    reading = read_nvml() if policy.present else NvmlReading()
    others = elsewhere(host, path)
    return CdiObservation(
        path=path,
        spec=spec,
        driver=reading.driver_version,
        reasons=tuple(_reasons(host, spec, reading)) if spec else (),
        toolkit=host.which("nvidia-ctk") is not None,
        units=tuple(_unit(host, name) for name in REFRESH_UNITS),
        elsewhere=tuple(others),
        conflicting=conflicting(path, spec, others) if spec else (),
        generated=bool(journal.recall("cdi").get("generated")),
        enabled_by_us=() if policy.present else _enabled_by_us(journal),
    )


def _reasons(host: Host, spec: Spec, reading: NvmlReading) -> Tuple[str, ...]:
    gone = [path for path in (*spec.nodes, *spec.sources, *spec.hooks) if not host.exists(path)]
    reasons = ["it names %s, which is not there" % path for path in gone[:1]]
    if reading.error or not reading.driver_version:
        return tuple(reasons)
    if spec.driver and spec.driver != reading.driver_version:
        reasons.append("it is for driver %s, %s is loaded" % (spec.driver, reading.driver_version))
    answering = [gpu for gpu in reading.gpus if not gpu.error]
    instances = {uuid for gpu in answering for uuid in gpu.mig_devices}
    whole = {gpu.uuid for gpu in answering if not gpu.mig_devices}
    reasons.extend(outdated(spec, whole | instances, {gpu.uuid for gpu in answering} | instances, len(answering)))
    return tuple(reasons)


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
    """Other files that describe GPUs under the same kind, in the folders that container runtimes read."""
    found = {}
    for path in [path for pattern in ("/etc/cdi/*", "/var/run/cdi/*") for path in host.glob(pattern)]:
        if host.resolve(path) != host.resolve(own) and path.endswith((".yaml", ".yml", ".json")):
            spec = read_spec(host.read(path) or "")
            if spec.kind == KIND:
                found[path] = spec
    return found


def conflicting(path: str, spec: Spec, others: Mapping[str, Spec]) -> Tuple[str, ...]:
    """Files beside the specification that name a device of it: the runtime then gives that device to nobody.

    Between folders the later one wins (container-device-interface, pkg/cdi, "CDI Spec Conflicts").
    """
    folder = os.path.dirname(path)
    return tuple(other for other, described in others.items()
                 if os.path.dirname(other) == folder and set(described.names).intersection(spec.names))


def _enabled_by_us(journal: Journal) -> Tuple[str, ...]:
    enabled: Dict[str, bool] = {}
    for event in journal.events():
        step = event["step"]
        if event["event"] == "done" and step["capability"] == "cdi":
            if step["action"] in ("service.enable", "service.disable"):
                enabled[step["subject"]] = step["action"] == "service.enable"
    return tuple(sorted(unit for unit, is_enabled in enabled.items() if is_enabled))
