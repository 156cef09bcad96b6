# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which programs the modules of a task start on a laboratory host, as Python's audit events tell."""
from __future__ import annotations

import json
from typing import Dict, List

from gpulab.lab import Lab

DIRECTORY = "/root/command-count"
# Python reads it at its start wherever PYTHONPATH leads to it
_HOOK = """\
import json, os, sys

def watch(event, arguments):
    if event == "subprocess.Popen":
        with open("%s/commands", "a") as handle:
            handle.write(json.dumps([os.fsdecode(word) for word in arguments[1]]) + "\\n")

sys.addaudithook(watch)
""" % DIRECTORY


def watch(lab: Lab, host: str) -> Dict[str, str]:
    """Environment of a task whose commands are to be counted."""
    lab.ssh(host, ["mkdir", "-p", DIRECTORY])
    lab.host(host).ssh(["sh", "-c", "cat > %s/sitecustomize.py" % DIRECTORY], feed=_HOOK)
    return {"PYTHONPATH": DIRECTORY}


def commands(lab: Lab, host: str) -> List[List[str]]:
    """Commands since they were last asked for."""
    script = "cat %s/commands 2>/dev/null; rm -f %s/commands" % (DIRECTORY, DIRECTORY)
    return [json.loads(line) for line in lab.ssh(host, ["sh", "-c", script]).stdout.splitlines()]
