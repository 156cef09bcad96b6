# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which run of Ansible this is: the same in all of its tasks, each of which is a process, and in no other run."""
from __future__ import annotations

import hashlib
import platform
from typing import Any, Mapping

from ansible import constants

from ..module_utils.cluster.custody.run import Run, run_called

# Which job of AWX this is, by the newer and the older of its variables; of a slice of a job, the slice's own
_JOBS = ("awx_job_id", "tower_job_id")
_DIGITS = 10


def this_run(named: str, variables: Mapping[str, Any]) -> Run:
    """named: what a user calls it, '' for a name of our own. Raises GpuOpsError where that cannot be a name.

    Of our own, it is made from the directory for temporary files that Ansible makes anew at each start, and which the
    processes of its tasks inherit (the setting DEFAULT_LOCAL_TMP).
    """
    host = platform.node() or "unknown"
    if named:
        return run_called(named, host)
    made = hashlib.sha256(("%s %s" % (host, constants.DEFAULT_LOCAL_TMP)).encode()).hexdigest()[:_DIGITS]
    job = next((str(variables[name]) for name in _JOBS if str(variables.get(name) or "").isdigit()), "")
    return run_called("awx-%s-%s" % (job, made) if job else made, host)
