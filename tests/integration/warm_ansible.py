# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""ansible-playbook that is kept at its beginning: it plays its playbook again for every order, without starting anew.

The program reads its command line, which is that of ansible-playbook, and its inventory. Orders come on its standard
input. The first run is its own, after which all that a run imports and reads is in memory; every further one is a
forked child's, which may be killed. Tasks are carried out in that child, and not in one more for each.
"""
from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Dict, Iterator, Mapping, Optional, Sequence

# {module: {name: value}}, as JSON: constants that are as they are for people, and too long for thousands of runs
CONSTANTS = "WARM_CONSTANTS"
CALLS = "REMOTE_CALLS_FILE"


class Controller:
    """The program, as those who give orders see it. One run at a time.

    argv:      of ansible-playbook, whose directory has its Python too.
    constants: {module of the collection: {name: value}}, as configuration of what the run imports.
    """

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], scratch: Path,
                 constants: Mapping[str, Mapping[str, float]]) -> None:
        python = Path(argv[0]).parent / "python"
        self.process = subprocess.Popen(
            [str(python), __file__, *argv[1:]], cwd=scratch, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**environment, CONSTANTS: json.dumps(constants)})

    def start(self, results: Path, calls: Path) -> Run:
        """Begin a run, whose output goes to results."""
        calls.unlink(missing_ok=True)
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([str(results), str(calls)]) + "\n")
        self.process.stdin.flush()
        return Run(self, self.said())

    def said(self) -> int:
        """The next number that the program says: a run's process, then how that ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "ansible-playbook that was kept ended with %s" % self.process.wait()
        return int(line)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


class Run:
    """A run, with what callers use of a subprocess.Popen; any number of threads may wait for it."""

    def __init__(self, controller: Controller, pid: int) -> None:
        self.pid = pid
        self._controller = controller
        self._code: Optional[int] = None
        self._lock = threading.Lock()

    def poll(self) -> Optional[int]:
        return self._code

    def wait(self) -> int:
        with self._lock:
            if self._code is None:
                self._code = self._controller.said()
            return self._code


def main() -> None:
    """The program."""
    # Only there, as it reads its configuration from the environment
    from ansible import context
    from ansible.cli.playbook import PlaybookCLI
    from ansible.executor.playbook_executor import PlaybookExecutor
    from ansible.inventory.manager import InventoryManager
    from ansible.plugins.strategy.linear import StrategyModule
    from ansible.vars.manager import VariableManager

    StrategyModule._queue_task = carry_out
    cli = PlaybookCLI(sys.argv)
    cli.parse()
    super(PlaybookCLI, cli).run()
    loader, inventory, variables = cli._play_prereqs()
    configure(json.loads(os.environ[CONSTANTS]))

    def play(results: str, calls: str) -> int:
        os.environ[CALLS] = calls
        with output_to(results):
            return int(PlaybookExecutor(context.CLIARGS["args"], inventory, variables, loader, {}).run())

    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as answers:
        for number, order in enumerate(sys.stdin):
            if number == 0:
                print(os.getpid(), play(*json.loads(order)), sep="\n", file=answers, flush=True)
                # What the run has registered is no business of the next one
                inventory = InventoryManager(loader, context.CLIARGS["inventory"])
                variables = VariableManager(loader, inventory, cli.version_info(gitinfo=False))
                gc.collect()
                gc.freeze()
                assert threading.active_count() == 1, threading.enumerate()
                continue
            pid = os.fork()
            if pid == 0:
                # It ends before that would pay
                gc.disable()
                os._exit(play(*json.loads(order)))
            print(pid, file=answers, flush=True)
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), file=answers, flush=True)


def carry_out(strategy: Any, host: Any, task: Any, task_vars: Dict[str, Any], play_context: Any) -> None:
    """Instead of giving a task to a worker process, what that does (ansible/executor/process/worker.py)."""
    from ansible._internal._task import TaskContext
    from ansible.executor.task_executor import TaskExecutor
    from ansible.executor.task_result import _RawTaskResult
    from ansible.plugins.loader import get_plugin_loader_namespace

    strategy._queued_task_cache[(host.name, task._uuid)] = {
        "host": host, "task": task, "task_vars": task_vars, "play_context": play_context}
    strategy._tqm.send_callback("v2_runner_on_start", host, task)
    # Its options are worked out in place, and a worker process has a task of its own
    copied = task.copy()
    with TaskContext(copied):
        result = TaskExecutor(host, copied, task_vars, play_context, strategy._loader, get_plugin_loader_namespace(),
                              strategy._final_q, strategy._variable_manager).run()
    strategy._final_q.send_task_result(_RawTaskResult(
        host=host, task=copied, return_data=result, task_fields=copied.dump_attrs()))
    strategy._pending_results += 1


def configure(constants: Mapping[str, Mapping[str, Any]]) -> None:
    for module, values in constants.items():
        vars(importlib.import_module(module)).update(values)


@contextlib.contextmanager
def output_to(path: str) -> Iterator[None]:
    """All that is said goes to this file, as it does from a process that was started so."""
    kept: Dict[int, int] = {number: os.dup(number) for number in (1, 2)}
    with open(path, "wb") as output:
        for number in kept:
            os.dup2(output.fileno(), number)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, before in kept.items():
            os.dup2(before, number)
            os.close(before)


if __name__ == "__main__":
    main()
