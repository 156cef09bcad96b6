# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""ansible-playbook that has its imports behind it: a process that is at the ready forks for each run.

A run is a process with arguments, directory, output and workers of its own, as one that is started from nothing. Saved
is what that imports, half a second of a processor and, of the collection, whose modules Ansible compiles anew wherever
they are imported, as much again; and that each module is packed up to be sent, which the runs of one process at the
ready do once. Of Ansible's settings those count that the process at the ready was started with: each set of variables
has one of its own.
"""
from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import IO, Any, Dict, List, Mapping, NoReturn, Optional, Sequence, Tuple

# So many at the ready; the one that was asked least lately goes
MOST = 4
MOST_BYTES = 1 << 20
# Between two looks for a task's end; by default a thousand a second, which take a thirtieth of a processor
POLL_SECONDS = 0.005
# Of the temporary directory: modules as they are sent
PACKED = "ansiballz_cache"
# Of a test, not of Ansible: a callback of the laboratory asks for it at the end of a run
OF_A_RUN = ("REMOTE_CALLS_FILE",)


class Run:
    """A run; a subprocess.Popen as far as tests go. Text where it has pipes."""

    def __init__(self, pid: int, args: Sequence[str], status: int, pipes: Sequence[Optional[int]]) -> None:
        self.pid, self.args = pid, list(args)
        self.returncode: Optional[int] = None
        self.stdout, self.stderr = (None if pipe is None else open(pipe, encoding="utf-8") for pipe in pipes)
        self._status = status

    def poll(self) -> Optional[int]:
        return self._ended(0)

    def wait(self, timeout: Optional[float] = None) -> int:
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def communicate(self, timeout: Optional[float] = None) -> Tuple[str, str]:
        deadline = None if timeout is None else time.monotonic() + timeout
        told: Dict[IO[str], List[bytes]] = {pipe: [] for pipe in (self.stdout, self.stderr) if pipe}
        left = set(told)
        while left:
            rest = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = select.select(list(left), [], [], rest)[0]
            if not ready:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            for pipe in ready:
                data = os.read(pipe.fileno(), 65536)
                told[pipe].append(data)
                if not data:
                    left.remove(pipe)
        self.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        said = {pipe: b"".join(parts).decode() for pipe, parts in told.items()}
        return said.get(self.stdout, "") if self.stdout else "", said.get(self.stderr, "") if self.stderr else ""

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: Optional[float]) -> Optional[int]:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            self.returncode = int(os.read(self._status, 100))
            os.close(self._status)
        return self.returncode


class _Ready:
    """A process at the ready, as those who give orders see it."""

    def __init__(self, python: str, environment: Mapping[str, str]) -> None:
        self.orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self.orders, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST_BYTES)
        self.process = subprocess.Popen([python, __file__, str(theirs.fileno())], env=dict(environment),
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        theirs.close()

    def start(self, argv: Sequence[str], environment: Mapping[str, str], directory: Path, stdout: Any,
              stderr: Any) -> Run:
        """stdout, stderr: as subprocess.Popen has them: PIPE, STDOUT or a file."""
        with contextlib.ExitStack() as ours:
            def given(wish: Any) -> Tuple[int, Optional[int]]:
                if wish != subprocess.PIPE:
                    return (wish if isinstance(wish, int) else wish.fileno()), None
                here, there = os.pipe()
                ours.callback(os.close, there)
                return there, here

            out, out_pipe = given(stdout)
            err, err_pipe = (out, None) if stderr == subprocess.STDOUT else given(stderr)
            status, told = os.pipe()
            ours.callback(os.close, told)
            order = json.dumps({"argv": list(argv), "environment": dict(environment), "directory": str(directory)})
            socket.send_fds(self.orders, [order.encode()], [out, err, told])
        line = b""
        while not line.endswith(b"\n"):
            read = os.read(status, 1)
            assert read, "ansible-playbook at the ready ended with %s" % self.process.wait()
            line += read
        return Run(int(line), argv, status, (out_pipe, err_pipe))

    def close(self) -> None:
        """It ends with its runs."""
        self.orders.close()


_at_the_ready: Dict[Tuple[Any, ...], _Ready] = {}


def start(argv: Sequence[str], environment: Mapping[str, str], directory: Path, stdout: Any, stderr: Any) -> Run:
    """Run ansible-playbook with these words after its name; argv[0] is its program or the Python that it is of."""
    settings = {name: value for name, value in environment.items() if name not in OF_A_RUN}
    python = str(Path(argv[0]).parent / "python")
    key = (python, *sorted(settings.items()))
    ready = _at_the_ready.pop(key, None)
    if ready is None or ready.process.poll() is not None:
        ready = _Ready(python, settings)
    _at_the_ready[key] = ready
    while len(_at_the_ready) > MOST:
        _at_the_ready.pop(next(iter(_at_the_ready))).close()
    return ready.start(argv, environment, directory, stdout, stderr)


def main() -> None:
    """The process at the ready."""
    orders = socket.socket(fileno=int(sys.argv[1]))
    import ansible.cli.playbook  # noqa: F401
    from ansible import constants
    os.mkdir(os.path.join(constants.DEFAULT_LOCAL_TMP, PACKED))
    with contextlib.suppress(ImportError):
        import kubernetes  # noqa: F401
    gc.collect()
    gc.freeze()
    runs = 0
    # Who waits for a run is nobody's to wait for
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        order, descriptors, _flags, _address = socket.recv_fds(orders, MOST_BYTES, 3)
        if not order:
            # They share a directory that goes with this process
            with contextlib.suppress(ChildProcessError):
                os.wait()
            return
        runs += 1
        if runs == 2:
            # Whose collection is a test's own is asked once
            import_plugins()
        if os.fork() == 0:
            orders.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            wait_for_run(json.loads(order), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def import_plugins() -> None:
    """Those that most runs have; as a run would, only where there is a collection."""
    from ansible.plugins.loader import init_plugin_loader

    init_plugin_loader()
    # The run's own attempt
    warnings.filterwarnings("ignore", "AnsibleCollectionFinder has already been configured")
    importlib.import_module("ansible.plugins.connection.ssh")
    with contextlib.suppress(ImportError):
        actions = importlib.import_module("ansible_collections.gpuops.nvidia.plugins.action")
        for module in pkgutil.iter_modules(actions.__path__):
            importlib.import_module("%s.%s" % (actions.__name__, module.name))
    gc.collect()
    gc.freeze()


def wait_for_run(order: Mapping[str, Any], out: int, err: int, told: int) -> NoReturn:
    """Tells the number of the run's process, and how that has ended."""
    pid = os.fork()
    if pid == 0:
        os.close(told)
        run(order, out, err)
    os.close(out)
    os.close(err)
    os.write(told, b"%d\n" % pid)
    os.write(told, b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


def run(order: Mapping[str, Any], out: int, err: int) -> NoReturn:
    from ansible import constants
    from ansible.cli import playbook

    for number, descriptor in ((1, out), (2, err)):
        os.dup2(descriptor, number)
    for descriptor in {out, err}:
        os.close(descriptor)
    os.chdir(order["directory"])
    os.environ.clear()
    os.environ.update(order["environment"])
    random.seed()
    # That which was made by the import is all runs'
    shared = constants.DEFAULT_LOCAL_TMP
    scratch = constants.DEFAULT_LOCAL_TMP = tempfile.mkdtemp(prefix="ansible-local-", dir=os.path.dirname(shared))
    os.symlink(os.path.join(shared, PACKED), os.path.join(scratch, PACKED))
    constants.DEFAULT_INTERNAL_POLL_INTERVAL = POLL_SECONDS
    code: Any = 1
    try:
        playbook.main(["ansible-playbook", *order["argv"][1:]])
    except SystemExit as end:
        code = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
    shutil.rmtree(scratch, ignore_errors=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


if __name__ == "__main__":
    main()
