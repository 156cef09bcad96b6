# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plans that stay on their host until they are carried out, each in a file that its digest names.

What the controller holds for every host of a fleet is then a name, and not the steps. The files are root's alone: a
plan carries no secret, but it shows the configuration of a host. Only the newest few are kept; who asks for one that is
gone is told so, and makes a new plan.
"""
from __future__ import annotations

import json
import os
import re
from typing import Any, Dict, Mapping

from . import journal
from .approval import REMEDY, read_approved
from .errors import GpuOpsError
from .host import Host
from .plan import Plan, canonical, digest

DIRECTORY = journal.DIRECTORY + "/plans"
NEWEST = 8
_NAME = re.compile(r"[0-9a-f]{16}\.json")
# As Host writes beside
_HALF_WRITTEN = re.compile(r"\.gpuops-[0-9a-f]{16}\.json")


def keep(host: Host, plan: Plan) -> str:
    """Write the plan down, and forget the oldest; the path, which is what approved() takes."""
    path = "%s/%s.json" % (DIRECTORY, digest(plan.promise()))
    for directory in (journal.DIRECTORY, DIRECTORY):
        host.make_directory(directory, 0o700)
    with host.guard(DIRECTORY + "/.guard"):
        host.write_bytes(path, canonical(plan.to_dict()).encode(), 0o600)
        _forget_oldest(host, os.path.basename(path))
    return path


def _forget_oldest(host: Host, kept: str) -> None:
    """All but the newest few, the one that was kept last among them, and what a killed run left half written.

    Times that are later than its own are of a clock that was wrong, and say nothing of what is new.
    """
    names = host.list(DIRECTORY)
    found = {name: host.stat("%s/%s" % (DIRECTORY, name)) for name in names if _NAME.fullmatch(name)}
    times = {name: there.st_mtime_ns for name, there in found.items() if there is not None}
    by_age = sorted(times, key=lambda name: (name == kept, times[name] <= times.get(kept, 0), times[name]))
    for name in (*by_age[:-NEWEST], *(name for name in names if _HALF_WRITTEN.fullmatch(name))):
        host.remove("%s/%s" % (DIRECTORY, name))


def approved(host: Host, given: Any, capability: str = "") -> Plan:
    """The approved plan, or its part of one capability, of what a task gives: the plan, its JSON, or where it is kept.

    Raises GpuOpsError where there is none, or where it is not the plan that its name says.
    """
    return read_approved(_data(host, given), capability)


def _data(host: Host, given: Any) -> Mapping[str, Any]:
    if not isinstance(given, str):
        return given if isinstance(given, Mapping) else {}
    if not given.startswith(DIRECTORY + "/"):
        return _parsed(given, "approved_plan")
    name = given[len(DIRECTORY) + 1:]
    content = host.read(given) if _NAME.fullmatch(name) else None
    if content is None:
        raise GpuOpsError(
            "approval.plan_not_kept",
            found="no plan %s on this host" % given,
            wanted="the plan that was approved; the newest %d of a host are kept" % NEWEST,
            remedy=REMEDY,
        )
    data = _parsed(content, given)
    found = digest(read_approved(data).promise())
    if name != found + ".json":
        raise GpuOpsError("approval.kept_plan_is_another", found="%s holds plan %s" % (given, found),
                          wanted="the plan that its name says", remedy=REMEDY)
    return data


def _parsed(text: str, where: str) -> Dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise GpuOpsError("approval.kept_plan_is_no_json", found="%s is no JSON: %s" % (where, error),
                          wanted="a plan as `gpu_plan` returned or kept it", remedy=REMEDY) from error
    return dict(data) if isinstance(data, dict) else {}
