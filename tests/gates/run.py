# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run the gates of this repository: `python tests/gates/run.py check|sanity|test|all`, or gates by name.

The last line is the sum over all gates and tests: ``N passed, N failed``.
"""
from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from types import FrameType
from typing import Dict, List, Optional

import suites
import workspace
from gate import Gate, Runner, say


def main() -> int:
    arguments = parse()
    signal.signal(signal.SIGTERM, _interrupt)
    started = time.monotonic()
    gates = select(arguments.what)
    runner = Runner(gates, workspace.work_root() / "logs", environment())
    say("%d gates; their logs: %s" % (len(gates), runner.logs))
    passed, failed, skipped = runner.run()
    say("%.0f s in all" % (time.monotonic() - started))
    say("%d passed, %d failed%s" % (passed, failed, ", %d skipped" % skipped if skipped else ""))
    return 1 if failed or not passed else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run the gates of this repository.")
    parser.add_argument("what", nargs="+", metavar="SUITE|GATE", help="suites: %s; gates: %s" % (
        ", ".join(suites.SUITES), ", ".join(gate.name for gate in suites.all_gates())))
    return parser.parse_args()


def select(words: List[str]) -> List[Gate]:
    """The gates asked for, in their order, with the gates that they need."""
    gates = {gate.name: gate for gate in suites.all_gates()}
    wanted: Dict[str, Gate] = {}

    def take(name: str) -> None:
        if name not in gates:
            raise SystemExit("there is no gate called %s; there are: %s" % (name, ", ".join(gates)))
        for need in gates[name].needs:
            take(need)
        wanted[name] = gates[name]

    for word in words:
        for name in suites.SUITES[word]() if word in suites.SUITES else [word]:
            take(name)
    return [gate for gate in gates.values() if gate.name in wanted]


def environment() -> Dict[str, str]:
    """The caller's environment, with the project's programs first and the collection where Ansible looks for it."""
    variables = dict(os.environ)
    # Settings of the person who runs the gates must not decide whether they pass.
    for name in [name for name in variables if name.startswith(("ANSIBLE_", "MOLECULE_", "PYTEST_"))]:
        del variables[name]
    variables.update({
        "ANSIBLE_COLLECTIONS_PATH": str(workspace.collections_root()),
        "ANSIBLE_HOME": str(workspace.work_root() / "ansible-home"),
        "ANSIBLE_NOCOLOR": "1",
        "LC_ALL": "C.UTF-8",
        "NO_COLOR": "1",
        "PATH": "%s:%s" % (workspace.venv() / "bin", os.environ.get("PATH", os.defpath)),
        # Each program of a test would compile the collection anew, and none is to write into the tree
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": str(workspace.work_root() / "bytecode"),
        "PYTHONUNBUFFERED": "1",
    })
    return variables


def _interrupt(_number: int, _frame: Optional[FrameType]) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
