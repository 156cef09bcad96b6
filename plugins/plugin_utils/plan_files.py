# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plans as files on the controller: one JSON file a host, in a directory that is named as its caller sees it.

Beside them are the fleet's plan as a page, in Markdown and in HTML, and the index of what an approval of it covers.
No host's file has one of their names.
"""
from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Any, Dict, List, Mapping, Optional

from ansible.utils.path import unfrackpath

from ..module_utils.core.approval import read_approved
from ..module_utils.core.errors import GpuOpsError
from ..module_utils.core.plan import Plan, digest
from ..module_utils.fleet.approval import CLUSTERS, HOSTS, REMEDY, promised, require
from .text_files import write

# The fleet's own files
INDEX, MARKDOWN, HTML = "fleet.index", "fleet.md", "fleet.html"
APPROVED_FROM, APPROVED_FLEET = "approved_from", "approved_fleet"
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
    return _in(directory, "%s.json" % host)


def save(plan: Mapping[str, Any], path: str) -> None:
    """Write the plan for its owner's eyes only: a plan shows the configuration of a host."""
    _save(json.dumps(plan, indent=2, sort_keys=True) + "\n", path)


def save_fleet(directory: str, index: Mapping[str, Any], markdown: str, html: str) -> List[str]:
    """Write the fleet's plan, likewise; the paths of its files."""
    texts = {INDEX: json.dumps(index, indent=1, sort_keys=True) + "\n", MARKDOWN: markdown, HTML: html}
    for name, text in texts.items():
        _save(text, _in(directory, name))
    return [_in(directory, name) for name in texts]


def approved_plan(directory: str, host: str, fleet: str = "") -> Dict[str, Any]:
    """The plan that was approved for a host.

    fleet: digest of the fleet's plan that was approved; '' is to take what is in the directory for approved.
    Raises GpuOpsError.
    """
    index = _index_with(directory, fleet, HOSTS, host)
    plan = read(plan_path(directory, host), bool(fleet))
    if index is not None:
        require(index, fleet, HOSTS, host, digest(read_approved(plan).promise()))
    return plan


def approved_plan_of_cluster(directory: str, uid: str, fleet: str = "") -> Plan:
    """The same of a cluster, whatever it goes by."""
    index = _index_with(directory, fleet, CLUSTERS, uid)
    plan = replace(read_approved(read(cluster_path(directory, uid), bool(fleet))), host="")
    if index is not None:
        require(index, fleet, CLUSTERS, uid, digest(plan.promise()))
    return plan


def cluster_path(directory: str, uid: str) -> str:
    """Where the plan of a cluster is, among those of hosts."""
    return plan_path(directory, "cluster-%s" % uid)


def refuse_without_plans(fleet: str) -> None:
    """Raises GpuOpsError, where a fleet's plan was approved and nobody says where it is."""
    raise GpuOpsError(
        "approval.fleet_without_plans",
        found="the plan of the fleet with the digest %s is approved, and no directory with plans is named" % fleet,
        wanted="the plans that the digest is of",
        remedy="set `approved_from` to the directory that `gpuops.nvidia.plan` saved them in",
        option="approved_from",
    )


def _save(text: str, path: str) -> None:
    try:
        os.makedirs(os.path.dirname(path), mode=_DIRECTORY_MODE, exist_ok=True)
        write(path, text, _MODE)
    except OSError as error:
        raise GpuOpsError(
            "approval.plan_not_saved",
            found="the plan cannot be saved as %s: %s" % (path, error.strerror),
            wanted="a directory on the controller that %s may write in" % _who(),
            remedy="name another directory; a relative one is looked for in %s" % os.getcwd(),
        ) from error


def read(path: str, of_fleet: bool = False) -> Dict[str, Any]:
    """The plan in a file. Raises GpuOpsError where there is none that this release can be held to.

    of_fleet: whether the plan of a fleet is approved, which a new one in the same directory would take the place of.
    """
    try:
        with open(path, encoding="utf-8") as handle:
            data = json.load(handle)
    except OSError as error:
        raise GpuOpsError(
            "approval.no_plan",
            found="no approved plan in %s: %s" % (path, error.strerror),
            wanted="the file that gpuops.nvidia.plan saved for this host",
            remedy=("put the file back as it was, or " + REMEDY if of_fleet else
                    "run `gpuops.nvidia.plan` with the same directory and read the plan; a relative one is looked for "
                    "in %s" % os.getcwd()),
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


def _index_with(directory: str, fleet: str, kind: str, name: str) -> Optional[Dict[str, Any]]:
    """The index, where a fleet's plan was approved. Raises GpuOpsError unless it has a plan of this host or cluster.

    It says more than a file that is missing: who had no plan has none, and one of an earlier plan may lie there.
    """
    if not fleet:
        return None
    index = _index(directory)
    promised(index, fleet, kind, name)
    return index


def _index(directory: str) -> Dict[str, Any]:
    path = _in(directory, INDEX)
    try:
        with open(path, encoding="utf-8") as handle:
            found = json.load(handle)
            return {"schema": found["schema"], HOSTS: dict(found[HOSTS]), CLUSTERS: dict(found[CLUSTERS])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise GpuOpsError(
            "approval.no_plan_of_the_fleet",
            found="no plan of the fleet in %s: %s" % (path, getattr(error, "strerror", None) or error),
            wanted="the file that gpuops.nvidia.plan saved beside the plans of the hosts",
            remedy="put it back as it was, or " + REMEDY,
        ) from error


def _in(directory: str, name: str) -> str:
    return str(os.path.join(unfrackpath(directory, follow=False), name))


def _who() -> str:
    return "user %d" % os.geteuid()
