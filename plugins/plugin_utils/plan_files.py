# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plans as files on the controller: one JSON file a host, in a directory that is named as its caller sees it."""
from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Any, Dict, Mapping

from ansible.utils.path import unfrackpath

from ..module_utils.core.approval import read_approved
from ..module_utils.core.errors import GpuOpsError
from .text_files import write

_DIRECTORY_MODE, _MODE = 0o700, 0o600


def plan_path(directory: str, host: str) -> str:
    """Where the plan of a host is; a relative directory is one of the directory that Ansible was started in.

    Ansible's own tasks on the controller run in the playbook's directory, which a collection keeps to itself.
    """
    if os.path.basename(host) != host:
        raise GpuOpsError(
            "approval.host_is_no_file_name",
            found="a host named %s" % host,
            wanted="a name that can be a file's",
            remedy="name the host without a slash and give its address as ansible_host",
        )
    return str(os.path.join(unfrackpath(directory, follow=False), "%s.json" % host))


def save(plan: Mapping[str, Any], path: str) -> None:
    """Write the plan for its owner's eyes only: a plan shows the configuration of a host."""
    try:
        os.makedirs(os.path.dirname(path), mode=_DIRECTORY_MODE, exist_ok=True)
        write(path, json.dumps(plan, indent=2, sort_keys=True) + "\n", _MODE)
    except OSError as error:
        raise GpuOpsError(
            "approval.plan_not_saved",
            found="the plan cannot be saved as %s: %s" % (path, error.strerror),
            wanted="a directory on the controller that %s may write in" % _who(),
            remedy="name another directory; a relative one is looked for in %s" % os.getcwd(),
        ) from error


def read(path: str) -> Dict[str, Any]:
    """The plan in a file. Raises GpuOpsError where there is none that this release can be held to."""
    try:
        with open(path, encoding="utf-8") as handle:
            data = json.load(handle)
    except OSError as error:
        raise GpuOpsError(
            "approval.no_plan",
            found="no approved plan in %s: %s" % (path, error.strerror),
            wanted="the file that gpuops.nvidia.plan saved for this host",
            remedy="run `gpuops.nvidia.plan` with the same directory and read the plan; a relative one is looked for "
                   "in %s" % os.getcwd(),
        ) from error
    except ValueError as error:
        raise GpuOpsError(
            "approval.plan_is_no_json",
            found="%s is no JSON: %s" % (path, error),
            wanted="a plan as gpuops.nvidia.plan saved it",
            remedy="make a new plan, read it and approve that one",
        ) from error
    try:
        read_approved(data if isinstance(data, dict) else {})
    except GpuOpsError as error:
        raise GpuOpsError.because(
            [replace(refusal, found="%s in %s" % (refusal.found, path)) for refusal in error.refusals]) from error
    return dict(data)


def _who() -> str:
    return "user %d" % os.geteuid()
