# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One run at a time on a host: several controllers as processes that run the real engine, some of them killed."""
from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import random
import re
import signal
import time
from pathlib import Path
from typing import Any, Callable, Dict, List

import pytest
from core_world import furnish, run, tree

from ansible_collections.gpuops.nvidia.plugins.module_utils.core import lock as locks
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.applying import apply_alone
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.lock import HostLock
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.telling import Telling

# 300 where a machine has the time
ROUNDS = int(os.environ.get("GPUOPS_ROUNDS", "8"))
LIMIT_SECONDS = 60
FORK = multiprocessing.get_context("fork")
KEPT = ("var/lib/gpuops", "run/gpuops")


def ended(process: Any) -> int:
    process.join(LIMIT_SECONDS)
    assert process.exitcode is not None, "a process does not end"
    return int(process.exitcode)


def in_a_process(work: Callable[[], None]) -> Any:
    process = FORK.Process(target=work)
    process.start()
    return process


def at_work(root: Path, seconds: float) -> Any:
    """A process that holds the lock already, for so long."""
    ready = FORK.Event()

    def work() -> None:
        with HostLock(Host(str(root)), "one", "cdi_spec for ada@a").held(0):
            ready.set()
            time.sleep(seconds)

    process = in_a_process(work)
    assert ready.wait(LIMIT_SECONDS)
    return process


def held_by(root: Path) -> Dict[str, Any]:
    return json.loads((root / locks.RECORD.lstrip("/")).read_text())


def refusal(root: Path, timeout: float = 0) -> GpuOpsError:
    lock = HostLock(Host(str(root)), "other", "gpu_driver for eve@b")
    with pytest.raises(GpuOpsError) as refused, lock.held(timeout):
        raise AssertionError("the lock was given twice")
    return refused.value


@pytest.fixture
def root(memory: Path) -> Path:
    furnish(memory)
    return memory


def test_the_second_run_says_who_holds_it_and_since_when(root: Path) -> None:
    with HostLock(Host(str(root)), "one", "cdi_spec for ada@a").held(0) as waited:
        assert waited == ""
        error = refusal(root, 0.3)
        assert "cdi_spec for ada@a (process %d), at work since 20" % os.getpid() in error.found
        assert "waited 0 s for it, since 20" in error.found
        assert error.details["held_by"]["who"] == "cdi_spec for ada@a"
        assert (root / "run/gpuops").stat().st_mode & 0o777 == 0o700
    with HostLock(Host(str(root)), "other", "gpu_driver for eve@b").held(0):
        pass
    assert not (root / locks.RECORD.lstrip("/")).exists()


def test_the_second_run_says_which_step_the_first_is_at(root: Path) -> None:
    host = Host(str(root))
    with HostLock(host, "one", "cdi_spec for ada@a").held(0):
        telling = Telling(host, "one", False)
        telling.step(Step("cdi", "cdi.generate", "/etc/cdi/nvidia.yaml", "It is missing."), 3, 5)
        assert re.search(r", at: step 3 of 5, cdi.generate /etc/cdi/nvidia.yaml, for \d+ s;", refusal(root).found)
        # of a run before it, which was killed
        Telling(host, "another", False).reading()
        assert ", at: " not in refusal(root).found
        telling.reading()
    assert Host(str(root)).list("/run/gpuops") == ["lock"]


def test_it_waits_as_long_as_it_is_told_and_says_for_whom(root: Path) -> None:
    lock = HostLock(Host(str(root)), "one", "cdi_spec for ada@a")
    with lock.held(0):
        pass
    process = at_work(root, 0.5)
    with HostLock(Host(str(root)), "two", "gpu_driver for eve@b").held(LIMIT_SECONDS) as waited:
        assert waited.startswith("cdi_spec for ada@a (process %d)" % process.pid)
    assert ended(process) == 0


def test_who_plans_waits_for_others_and_takes_nothing(root: Path) -> None:
    planner = HostLock(Host(str(root)), "", "gpu_plan")
    assert planner.await_others(0) == ""
    assert not (root / "run/gpuops").exists()
    process = at_work(root, 0.5)
    with pytest.raises(GpuOpsError, match="another run: cdi_spec for ada@a"):
        planner.await_others(0)
    assert planner.await_others(LIMIT_SECONDS).startswith("cdi_spec for ada@a")
    assert ended(process) == 0
    assert not (root / locks.RECORD.lstrip("/")).exists()


def looks(root: Path, seconds: float) -> Any:
    """A process that looks at the GPUs for so long."""
    ready = FORK.Event()

    def work() -> None:
        with locks.looking(Host(str(root))) as may_look:
            assert may_look
            (root / "opened").touch()
            ready.set()
            time.sleep(seconds)
            (root / "opened").unlink()

    process = in_a_process(work)
    assert ready.wait(LIMIT_SECONDS)
    return process


@pytest.mark.parametrize("is_run", [True, False])
def test_who_works_or_plans_waits_for_who_only_looks_and_nobody_looks_meanwhile(root: Path, is_run: bool) -> None:
    """Who looks has GPUs open, and a plan would find them in use."""
    host = Host(str(root))
    process = looks(root, 0.5)
    with HostLock(host, "one", "gpu_driver").held(0) if is_run else locks.unlooked(host):
        assert not (root / "opened").exists()
        assert ended(process) == 0

        def other() -> None:
            with locks.looking(Host(str(root)), 0) as may_look:
                os._exit(3 if may_look else 0)

        assert ended(in_a_process(other)) == 0
    assert ended(looks(root, 0)) == 0


def test_a_look_that_hangs_is_not_waited_for_for_ever(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = looks(root, LIMIT_SECONDS)
    monkeypatch.setattr(locks, "LOOK_SECONDS", 0.2)
    with HostLock(Host(str(root)), "one", "gpu_driver").held(0):
        assert process.is_alive()
    process.kill()
    process.join()


def test_who_looks_waits_for_another_who_looks(root: Path) -> None:
    """Else what was seen by one of them would be lost; a run is not waited for."""
    host = Host(str(root))
    process = looks(root, 0.5)
    with locks.looking(host, 0) as may_look:
        assert not may_look
    with locks.looking(host, LIMIT_SECONDS) as may_look:
        assert may_look and not (root / "opened").exists()
    assert ended(process) == 0
    began = time.monotonic()
    with HostLock(host, "one", "gpu_driver for ada@a").held(0):
        def other() -> None:
            with locks.looking(Host(str(root)), LIMIT_SECONDS) as may_look:
                os._exit(3 if may_look else 0)

        assert ended(in_a_process(other)) == 0
    assert time.monotonic() - began < LIMIT_SECONDS


def test_a_run_may_look_itself(root: Path) -> None:
    host = Host(str(root))
    assert ended(looks(root, 0)) == 0
    with HostLock(host, "", "gpuops").held(0), locks.looking(host) as may_look:
        assert may_look
    with HostLock(host, "one", "gpu_driver for ada@a").held(0), locks.looking(host) as may_look:
        assert not may_look


def test_who_only_plans_leaves_nothing_where_nobody_looks(root: Path) -> None:
    with locks.unlooked(Host(str(root))):
        assert not (root / "run/gpuops").exists()


def test_it_ends_with_a_killed_owner(root: Path) -> None:
    process = at_work(root, LIMIT_SECONDS)
    refusal(root)
    os.kill(process.pid, signal.SIGKILL)
    assert ended(process) == -signal.SIGKILL
    with HostLock(Host(str(root)), "two", "gpu_driver for eve@b").held(0) as waited:
        assert waited == ""


def test_a_command_that_outlives_its_killed_module_is_waited_for(root: Path) -> None:
    """Two update-initramfs at once write one file: a run that is started again must not meet the first one's."""
    begun = root / "run" / "begun"

    def work() -> None:
        host = Host(str(root))
        with HostLock(host, "one", "gpu_driver for ada@a").held(0):
            host.run(["true"])
            host.run(["sh", "-c", "echo $$ >%s.new; mv %s.new %s; exec sleep 60" % (begun, begun, begun)])

    process = in_a_process(work)
    deadline = time.monotonic() + LIMIT_SECONDS
    while not begun.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    command = int(begun.read_text())
    # Who runs it tells of it right after it has begun
    while str(command) not in (Host(str(root)).read(locks.COMMAND) or "").split() and time.monotonic() < deadline:
        time.sleep(0.01)
    try:
        os.kill(process.pid, signal.SIGKILL)
        assert ended(process) == -signal.SIGKILL
        error = refusal(root)
        assert "a command of the killed gpu_driver for ada@a (process %d), at work since 20" % command in error.found
        with pytest.raises(GpuOpsError, match="a command of the killed"), \
                HostLock(Host(str(root)), "one", "gpu_driver for ada@a").held(0):
            raise AssertionError("the lock was given twice")
    finally:
        os.kill(command, signal.SIGKILL)
    with HostLock(Host(str(root)), "two", "y").held(LIMIT_SECONDS):
        pass


def test_a_call_that_ssh_repeats_waits_for_the_first_one(root: Path) -> None:
    """reconnection_retries of Ansible's ssh: the same call of the same run again, while the first still works."""
    ready, done = FORK.Event(), FORK.Event()

    def work() -> None:
        with HostLock(Host(str(root)), "one", "cdi_spec for ada@a").held(0):
            ready.set()
            done.wait(LIMIT_SECONDS)

    process = in_a_process(work)
    assert ready.wait(LIMIT_SECONDS)
    Telling(Host(str(root)), "one", False).step(Step("cdi", "cdi.generate", "/etc/cdi/nvidia.yaml", "-"), 3, 5)
    with pytest.raises(GpuOpsError) as refused, HostLock(Host(str(root)), "one", "cdi_spec for ada@a").held(0):
        raise AssertionError("the lock was given twice")
    assert "process %d" % process.pid in refused.value.found
    assert ", at: step 3 of 5, cdi.generate" in refused.value.found
    since = held_by(root)["since"]
    refusal(root)
    done.set()
    assert ended(process) == 0
    with HostLock(Host(str(root)), "one", "cdi_spec for ada@a").held(0):
        assert held_by(root)["since"] > since


def test_a_process_id_that_was_given_again_holds_nothing(root: Path) -> None:
    with HostLock(Host(str(root)), "one", "x").held(0):
        for change in ({"started": "1"}, {"boot": "of yesterday"}, {"pid": 2 ** 22 + 1}):
            record = dict(held_by(root), **change)
            (root / locks.RECORD.lstrip("/")).write_text(json.dumps(record))
            with HostLock(Host(str(root)), "two", "y").held(0):
                assert held_by(root)["token"] == "two"
            (root / locks.RECORD.lstrip("/")).write_text(json.dumps(dict(record, **held_by_us())))


def held_by_us() -> Dict[str, Any]:
    host = Host()
    return {"pid": os.getpid(), "started": host.process_started(os.getpid()), "boot": host.boot()}


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"token": "x"}'])
def test_a_record_that_nobody_understands_holds_nothing(root: Path, text: str) -> None:
    with HostLock(Host(str(root)), "one", "x").held(0):
        pass
    (root / locks.RECORD.lstrip("/")).write_text(text)
    with HostLock(Host(str(root)), "two", "y").held(0):
        assert held_by(root)["token"] == "two"


def age(root: Path) -> None:
    """Let the time pass that a controller has."""
    record = held_by(root)
    record["handed_over"] -= locks.GRACE_SECONDS
    (root / locks.RECORD.lstrip("/")).write_text(json.dumps(record))


class TestHandOver:
    """The module's process ends, and the run goes on."""

    @staticmethod
    def hand_over(root: Path) -> None:
        def work() -> None:
            lock = HostLock(Host(str(root)), "one", "gpu_driver for ada@a")
            with lock.held(0):
                lock.hand_over()

        assert ended(in_a_process(work)) == 0

    def test_others_wait_and_the_next_call_takes_it_up(self, root: Path) -> None:
        self.hand_over(root)
        since = held_by(root)["since"]
        assert "gpu_driver for ada@a (package transaction of its controller)" in refusal(root).found
        with HostLock(Host(str(root)), "one", "gpu_driver for ada@a").held(0) as waited:
            assert waited == "" and held_by(root)["since"] == since
            refusal(root)
        with HostLock(Host(str(root)), "two", "y").held(0):
            pass

    def test_a_controller_that_died_frees_it_in_time(self, root: Path) -> None:
        self.hand_over(root)
        age(root)
        with HostLock(Host(str(root)), "two", "y").held(0):
            pass

    @pytest.mark.parametrize("path", locks.PACKAGE_PROCESSES)
    def test_not_while_a_process_lives_that_dnf_or_zypper_has_written_down(self, root: Path, path: str) -> None:
        self.hand_over(root)
        age(root)
        go_on = FORK.Event()
        process = in_a_process(lambda: bool(go_on.wait(LIMIT_SECONDS)) and None)
        (root / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (root / path.lstrip("/")).write_text("%d\n" % process.pid)
        assert "package transaction of its controller" in refusal(root).found
        assert "(process %d, " % process.pid in locks.package_managers(Host(str(root)))
        go_on.set()
        assert ended(process) == 0
        age(root)
        assert not locks.package_manager_works(Host(str(root)))
        with HostLock(Host(str(root)), "two", "y").held(0):
            pass

    def test_not_while_dpkg_works(self, root: Path) -> None:
        path = root / "var/lib/dpkg/lock-frontend"
        path.parent.mkdir(parents=True)
        path.write_text("")
        ready, done = FORK.Event(), FORK.Event()

        def dpkg() -> None:
            with open(path, "r+") as file:
                fcntl.lockf(file, fcntl.LOCK_EX)
                ready.set()
                done.wait(LIMIT_SECONDS)

        process = in_a_process(dpkg)
        assert ready.wait(LIMIT_SECONDS)
        self.hand_over(root)
        age(root)
        refusal(root)
        done.set()
        assert ended(process) == 0
        # the controller gets its time once the transaction is over
        refusal(root)
        age(root)
        with HostLock(Host(str(root)), "two", "y").held(0):
            pass


class TestControllers:
    @pytest.mark.parametrize("number", range(ROUNDS))
    def test_one_works_and_the_others_wait_or_refuse(self, root: Path, number: int) -> None:
        chance = random.Random(number)
        before = tree(root, *KEPT)
        log = root / "run" / "log"
        workers: List[Any] = []
        for worker in range(5 if number % 2 else 2):
            token, timeout = "controller %d" % worker, chance.choice((0, 0.1, LIMIT_SECONDS, LIMIT_SECONDS))
            workers.append(in_a_process(lambda token=token, timeout=timeout: controller(root, log, token, timeout)))
        killed = chance.randrange(len(workers)) if chance.random() < 0.7 else -1
        if killed >= 0:
            time.sleep(chance.random() * 0.1)
            workers[killed].kill()
            ended(workers[killed])
            if log.exists() and (root / locks.RECORD.lstrip("/")).exists():
                record = held_by(root)
                if record["token"] == "controller %d" % killed and record["handed_over"]:
                    age(root)
        ends = [ended(process) for process in workers]
        assert all(end == 0 or index == killed for index, end in enumerate(ends)), ends
        # nobody came in while another was in, unless that one was killed
        inside, worked = "", 0
        for line in log.read_text().splitlines() if log.exists() else []:
            word, _space, token = line.partition(" ")
            if word == "refused":
                continue
            assert inside in ("", token) or inside == "controller %d" % killed, log.read_text()
            inside = "" if word == "out" else token
            worked += word == "out"
        assert worked or killed >= 0
        apply_alone(run(str(root), state="absent"), HostLock(Host(str(root)), "last", "x"), 0)
        assert tree(root, *KEPT, "run/log") == before


def controller(root: Path, log: Path, token: str, timeout: float) -> None:
    """Two calls of a module with a transaction in between, as the action plugin makes them."""
    def tell(word: str) -> None:
        with open(log, "a") as file:
            file.write("%s %s\n" % (word, token))

    host = Host(str(root))
    lock = HostLock(host, token, token)
    try:
        with lock.held(timeout):
            tell("in")
            run(str(root), text=token).apply()
            lock.hand_over()
    except GpuOpsError as error:
        assert "held_by" in error.details, error
        tell("refused")
        return
    time.sleep(0.01)
    with HostLock(host, token, token).held(LIMIT_SECONDS):
        tell("in")
        run(str(root), text=token + " again").apply()
        tell("out")
