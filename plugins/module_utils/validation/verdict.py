# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From checks to a module's result, and to the status files that NVIDIA's components wait for."""
from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Tuple

from ..core.errors import GpuOpsError
from ..core.host import Host
from ..core.refusal import Refusal
from .checks import Check
from .status import FAILED, PASSED, UNKNOWN

# The GPU Operator's validator (cmd/nvidia-validator): its operands wait for these files
STATUS_DIRECTORY = "/run/nvidia/validations"
STATUS_FILES: Dict[str, Tuple[str, ...]] = {
    "driver-ready": ("gpus_on_bus", "driver_versions", "gpus_answer", "fabric", "device_nodes"),
    "toolkit-ready": ("cdi_spec", "runtime_handler"),
}
# Of what may be unknown, or left alone because somebody is at work: they take a file away by failing alone
UNLESS_FAILED: Dict[str, Tuple[str, ...]] = {"driver-ready": ("recovery", "memory_health", "compute")}
# Of what may be unknown for once: it brings no file back
NOT_BY_UNKNOWN: Dict[str, Tuple[str, ...]] = {"driver-ready": ("compute",)}
# Contents that operands source: a driver on the host, at the root
DRIVER_READY = (
    "IS_HOST_DRIVER=true\n"
    "NVIDIA_DRIVER_ROOT=/\n"
    "DRIVER_ROOT_CTR_PATH=/host\n"
    "NVIDIA_DEV_ROOT=/\n"
    "DEV_ROOT_CTR_PATH=/host\n"
)
_OURS = {"driver-ready": DRIVER_READY, "toolkit-ready": ""}


def raise_if_unhealthy(checks: Sequence[Check], subject: str) -> None:
    """Raise the first failure, with all checks as details, unless every check passed."""
    failed = [check for check in checks if check.status == FAILED]
    if not failed:
        return
    raise GpuOpsError.because([
        Refusal("validation.check_failed", "%s fails %s: %s" % (subject, check.name, check.evidence),
                "every check of the validation to pass", check.remedy) for check in failed
    ], checks=[check.to_dict() for check in checks])


def status_changes(host: Host, checks: Sequence[Check]) -> Dict[str, Optional[str]]:
    """{status file: its text, or None where it has to go} of those that do not say what the checks have found."""
    passed = {check.name for check in checks if check.status == PASSED}
    failed = {check.name for check in checks if check.status == FAILED}
    unknown = {check.name for check in checks if check.status == UNKNOWN}
    changes: Dict[str, Optional[str]] = {}
    for name, needed in STATUS_FILES.items():
        path, there = "%s/%s" % (STATUS_DIRECTORY, name), host.read("%s/%s" % (STATUS_DIRECTORY, name))
        is_well = passed.issuperset(needed) and failed.isdisjoint(UNLESS_FAILED.get(name, ()))
        text = _OURS[name] if is_well else None
        # Whether devices compute is not known: what is there stays, and nothing comes
        if there != text and not (is_well and there is None and unknown.intersection(NOT_BY_UNKNOWN.get(name, ()))):
            changes[path] = text
    return changes


def write_status_files(host: Host, checks: Sequence[Check], proves: bool = True) -> List[str]:
    """Create the status files whose checks passed, remove the others; return the names that changed.

    proves: whether checks that passed are enough to create one.
    """
    changes = {path: text for path, text in status_changes(host, checks).items() if proves or text is None}
    for path, text in changes.items():
        if text is None:
            host.remove(path)
        else:
            host.write(path, text)
    return list(changes)


def remove_status_files(host: Host, check_mode: bool) -> List[str]:
    """Take back the status files that say what ours say, and directories that are empty then; return their names."""
    paths = {"%s/%s" % (STATUS_DIRECTORY, name): text for name, text in _OURS.items()}
    found = [path for path, text in paths.items() if host.read(path) == text]
    if not check_mode:
        for path in found:
            host.remove(path)
        if found:
            host.remove_empty_dir(STATUS_DIRECTORY)
            host.remove_empty_dir(STATUS_DIRECTORY.rsplit("/", 1)[0])
    return found
