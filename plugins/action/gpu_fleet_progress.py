# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import time
from typing import Any, ClassVar, Dict, Mapping

from ansible.plugins.action import ActionBase

from ..module_utils.core.errors import GpuOpsError
from ..module_utils.fleet.course import Change, begins, ends
from ..plugin_utils import following
from ..plugin_utils.reader_words import people_read
from ..plugin_utils.run_files import RunFiles

BEGUN, DONE, FAILED = "begun", "done", "failed"


class ActionModule(ActionBase):
    """Says where the change of a host begins or ends. Nobody is asked: the run's directory has what was said before."""

    _requires_connection = False
    ARGUMENTS: ClassVar[Mapping[str, Any]] = {
        "state": {"type": "str", "choices": [BEGUN, DONE, FAILED], "required": True},
        "hosts": {"type": "int", "default": 0},
        "seconds": {"type": "int"},
        "progress_interval": {"type": "raw", "default": following.DEFAULT_INTERVAL},
    }

    def run(self, tmp: Any = None, task_vars: Any = None) -> Dict[str, Any]:
        super().run(None, task_vars)
        _found, options = self.validate_argument_spec(dict(self.ARGUMENTS))
        try:
            seconds = following.interval(options["progress_interval"])
        except GpuOpsError as error:
            return dict(error.result(), failed=True, changed=False)
        if seconds and following.is_shown(self._task) and people_read():
            following.on_screen(self._line(str(task_vars["inventory_hostname"]), options))
        return {"changed": False}

    def _line(self, host: str, options: Mapping[str, Any]) -> str:
        files, now = RunFiles("changes"), time.time()
        known = files.get(host)
        change = Change(host, now) if options["state"] == BEGUN or not known else Change.from_dict(known)
        if options["state"] != BEGUN:
            change = Change(host, change.begun, now, options["state"] == FAILED)
        files.put(host, change.to_dict())
        others = [each for each in map(Change.from_dict, files.all()) if each.host != host]
        if options["state"] == BEGUN:
            return begins(change, others, options["hosts"], options["seconds"])
        return ends(change, others, options["hosts"])
