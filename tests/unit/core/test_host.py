# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import multiprocessing
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Iterator, List, Tuple

import pytest
import workspace

from ansible_collections.gpuops.nvidia.plugins.module_utils.core import host as hosts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import HostFailed
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import (
    CommandFailed,
    CommandTimedOut,
    Host,
    Ownership,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.rights import require_root

FORK = multiprocessing.get_context("fork")
NOBODY = 65534


def test_a_write_keeps_mode_and_link(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    real = tmp_path / "etc" / "real.toml"
    real.parent.mkdir()
    real.write_text("old")
    real.chmod(0o600)
    (tmp_path / "etc" / "link.toml").symlink_to("real.toml")
    host.write("/etc/link.toml", "new")
    assert real.read_text() == "new"
    assert real.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "etc" / "link.toml").is_symlink()


def test_a_refused_write_leaves_everything_as_it_was(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    host.write("/etc/a", "old")

    def refuse(path: str) -> None:
        assert Path(path).read_text() == "new"
        raise ValueError("not valid")

    with pytest.raises(ValueError):
        host.write("/etc/a", "new", check=refuse)
    assert host.read("/etc/a") == "old"
    assert os.listdir(tmp_path / "etc") == ["a"]


def test_new_files_get_the_mode_asked_for(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    host.write("/etc/secret", "x", mode=0o600)
    assert host.mode("/etc/secret") == 0o600


def test_new_files_get_the_owner_asked_for_and_old_ones_keep_theirs(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    host.write("/etc/theirs", "x", mode=0o640)
    if os.geteuid() == 0:
        os.chown(tmp_path / "etc/theirs", 12, 34)
    theirs = host.ownership("/etc/theirs")
    assert theirs is not None and theirs.mode == 0o640
    host.write("/etc/like-theirs", "x", ownership=theirs)
    assert host.ownership("/etc/like-theirs") == theirs
    host.write("/etc/theirs", "y", ownership=Ownership(0o600, 0, 0))
    assert host.ownership("/etc/theirs") == theirs
    assert host.ownership("/etc/none") is None


def test_a_new_file_gets_the_label_asked_for(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    try:
        os.setxattr(tmp_path, "security.selinux", b"system_u:object_r:etc_t:s0\0")
    except OSError:
        pytest.skip("labels cannot be set here")
    label = "system_u:object_r:container_config_t:s0\0"
    host.write("/a", "x", ownership=Ownership(0o600, os.getuid(), os.getgid(), label))
    assert os.getxattr(tmp_path / "a", "security.selinux") == label.encode()
    assert host.ownership("/a") == Ownership(0o600, os.getuid(), os.getgid(), label)


@pytest.mark.parametrize("name", ["a", "with\\backslash", "of two\nlines"])
def test_the_sha256_of_a_file_whatever_its_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"abc")
    host = Host(str(tmp_path))
    assert host.sha256("/" + name) == hashlib.sha256(b"abc").hexdigest()
    with pytest.raises(CommandFailed, match="No such file"):
        host.sha256("/none")


def test_what_is_not_there_reads_as_nothing(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    assert host.read("/etc/none") is None
    assert host.list("/etc") == []
    assert host.glob("/etc/*") == []
    for name in ("/etc/none", "/etc/none.d/none", "/none/none.d/none"):
        host.remove(name)
        host.remove_empty_dir(name)


def test_globs_answer_without_the_root(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    host.write("/lib/modules/6.1/updates/dkms/nvidia.ko", "")
    assert host.glob("/lib/modules/6.1/updates/**/nvidia*.ko*") == ["/lib/modules/6.1/updates/dkms/nvidia.ko"]


def test_bytes_that_are_no_utf8_survive(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    host.write_bytes("/etc/a", b"\xff# caf\xe9\n")
    host.write("/etc/a", host.read("/etc/a") + "more\n")
    assert host.read_bytes("/etc/a") == b"\xff# caf\xe9\nmore\n"


def test_a_failed_command_says_what_it_said() -> None:
    with pytest.raises(CommandFailed) as failed:
        Host().run(["sh", "-c", "echo no such thing >&2; exit 3"])
    assert failed.value.details["rc"] == 3
    assert "no such thing" in str(failed.value)


def test_a_missing_program_is_an_answer() -> None:
    assert Host().run(["gpuops-no-such-program"], check=False).rc == 127


def test_a_command_that_hangs_is_ended() -> None:
    with pytest.raises(CommandFailed, match="had not ended"):
        Host().run(["sleep", "5"], timeout=0.1)


def test_a_command_that_hangs_says_what_it_waited_for_and_said_last(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    with pytest.raises(CommandFailed) as failed:
        Host().run(["sh", "-c", "echo first; echo building; (sleep 600; true) & echo >%s; wait" % ready], timeout=3)
    assert ready.exists()
    [told] = re.findall(r"; at work in it: sleep \(process \d+, there for \d+ s\); it said last: 'building'",
                        failed.value.found)
    assert told in str(failed.value) and "(process" not in failed.value.found.replace(told, "")


def test_of_a_process_its_name_is_told_and_no_argument() -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            told = Host().process_told(process.pid)
        finally:
            process.kill()
    assert re.fullmatch(r"\S+ \(process %d, there for \d+ s\)" % process.pid, told) and "600" not in told
    assert Host().process_told(process.pid) == ""


def test_what_a_killed_write_left_is_replaced_by_the_next_one(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    (tmp_path / "etc").mkdir()

    def killed(path: str) -> None:
        os.link(path, str(tmp_path / "left"))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        host.write("/etc/a", "first", check=killed)
    (tmp_path / "left").rename(tmp_path / "etc" / ".gpuops-a")
    host.write("/etc/a", "second")
    assert os.listdir(tmp_path / "etc") == ["a"]
    assert host.read("/etc/a") == "second"


def test_nothing_unfinished_lies_in_a_directory_of_drop_ins(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    seen = []
    host.write("/etc/crio/crio.conf.d/99-a.conf", "x", check=seen.append)
    assert [Path(path).parent.name for path in seen] == ["crio"]
    assert os.listdir(tmp_path / "etc" / "crio") == ["crio.conf.d"]


def tell(connection: Any, work: Callable[[], Any], prepare: Callable[[], Any]) -> None:
    prepare()
    try:
        connection.send(work())
    except Exception as error:
        connection.send((type(error).__name__, str(error)))


def elsewhere(work: Callable[[], Any], prepare: Callable[[], Any]) -> Any:
    """What a function returns, or (type, text) of what it raises, in a process of its own."""
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=tell, args=(theirs, work, prepare))
    process.start()
    assert ours.poll(30), "no answer"
    answer = ours.recv()
    process.join(30)
    return answer


class TestKinds:
    """What is no regular file is neither read nor replaced."""

    def test_a_masked_unit_stays_masked_and_the_device_a_device(self, tmp_path: Path) -> None:
        if os.geteuid() != 0:
            pytest.skip("only root makes devices")
        null = tmp_path / "null"
        os.mknod(null, 0o20666, os.makedev(1, 3))
        (tmp_path / "unit.service").symlink_to(null)
        host = Host(str(tmp_path))
        assert host.read("/unit.service") == ""
        for write in (host.write, lambda name, text: host.put_back(name, text.encode(), Ownership(0o644, 0, 0))):
            with pytest.raises(HostFailed, match="/unit.service leads to the device .*systemctl unmask unit.service"):
                write("/unit.service", "text")
        assert null.is_char_device() and sorted(os.listdir(tmp_path)) == ["null", "unit.service"]

    @pytest.mark.parametrize("kind", ["directory", "FIFO", "socket", "loop"])
    def test_others_are_refused_by_name(self, tmp_path: Path, kind: str) -> None:
        path = tmp_path / "a"
        if kind == "directory":
            path.mkdir()
        elif kind == "FIFO":
            os.mkfifo(path)
        elif kind == "loop":
            path.symlink_to("a")
        else:
            server = socket.socket(socket.AF_UNIX)
            server.bind(str(path))
            server.close()
        before = path.lstat()[:6]
        host = Host(str(tmp_path))
        for act in (lambda: host.read("/a"), lambda: host.write("/a", "x"), lambda: host.append("/a", "x"),
                    lambda: list(host.lines("/a"))):
            with pytest.raises(HostFailed, match="^Found: /a cannot be"):
                act()
        # To look where a link leads is noted in its time of access
        assert path.lstat()[:6] == before and os.listdir(tmp_path) == ["a"]

    def test_a_file_in_the_place_of_a_directory(self, tmp_path: Path) -> None:
        host = Host(str(tmp_path))
        host.write("/etc", "x")
        assert host.read("/etc/a") is None and host.list("/etc") == [] and not host.exists("/etc/a")
        with pytest.raises(HostFailed, match="/etc/deep/a cannot be written: Not a directory.*file that stands in"):
            host.write("/etc/deep/a", "x")

    def test_a_directory_is_not_removed_as_a_file(self, tmp_path: Path) -> None:
        host = Host(str(tmp_path))
        host.write("/etc/a/b", "x")
        with pytest.raises(HostFailed, match="/etc/a cannot be removed"):
            host.remove("/etc/a")
        host.remove_empty_dir("/etc/a")
        assert host.read("/etc/a/b") == "x"


class TestErrors:
    def test_a_lack_of_rights_says_become(self, memory: Path) -> None:
        if os.geteuid() != 0 or not os.path.samefile(memory.parent, "/dev/shm"):
            pytest.skip("only root becomes somebody else, who gets no further than here")
        host = Host(str(memory))
        memory.chmod(0o755)
        host.write("/secret/a", "x", mode=0o600)
        host.write("/open/a", "x")
        os.chmod(host.path("/secret"), 0o700)
        for act in (lambda: host.read("/secret/a"), lambda: host.list("/secret"), lambda: host.exists("/secret/a"),
                    lambda: host.stat("/secret/a"), lambda: host.ownership("/secret/a"), lambda: host.glob("/secret/*"),
                    lambda: host.write("/open/a", "y"), lambda: host.remove("/open/a"),
                    lambda: host.remove("/secret/a"), lambda: host.remove_empty_dir("/open"),
                    lambda: host.append("/open/b", "y"), lambda: host.make_directory("/open/c", 0o700),
                    lambda: host.make_link("/open/l", "a"), lambda: host.write("/open/deep/er/a", "y")):
            kind, text = elsewhere(act, lambda: os.setuid(NOBODY))
            assert kind == "HostFailed" and "Permission denied" in text and "`become: true`" in text
        assert host.read("/open/a") == "x" and host.list("/open") == ["a"]

    def test_a_full_disk_says_which(self, tmp_path: Path) -> None:
        error = HostFailed.of(OSError(28, ""), "/var/lib/x", "written", "/var")
        assert str(error) == ("Found: /var/lib/x cannot be written: No space left on device. Wanted: space for it. "
                              "Do: free space on /var (see `df -h` and `df -i /var`), and run again. [host.no_space]")
        assert error.result()["errno"] == "ENOSPC" and error.result()["path"] == "/var/lib/x"

    def test_no_room_for_scratch_files_is_told(self, tmp_path: Path) -> None:
        if os.geteuid() != 0:
            pytest.skip("only root becomes somebody else")

        def unwritable() -> None:
            os.environ["TMPDIR"] = str(tmp_path / "none")
            tempfile.tempdir = str(tmp_path / "none")

        def act() -> None:
            with Host().scratch():
                pass

        kind, text = elsewhere(act, unwritable)
        assert kind == "HostFailed" and text.startswith("Found: %s/none cannot be written" % tmp_path)

    def test_a_writer_without_the_rights_of_root_says_become(self) -> None:
        if os.geteuid() != 0:
            pytest.skip("only root becomes somebody else")
        kind, text = elsewhere(lambda: require_root(Host()), lambda: os.setuid(NOBODY))
        assert kind == "GpuOpsError" and "runs as uid %d" % NOBODY in text and "`become: true`" in text

    def test_a_zero_byte_in_a_path_and_text_that_is_none(self, tmp_path: Path) -> None:
        host = Host(str(tmp_path))
        with pytest.raises(HostFailed, match="zero byte"):
            host.read("/etc/a\0b")
        with pytest.raises(HostFailed, match="no Unicode"):
            host.write("/etc/a", "\ud800")
        assert host.list("/etc") == []

    def test_files_of_the_kernel_that_answer_with_an_error_read_as_nothing(self) -> None:
        host = Host()
        assert host.read("/proc/self/mem") is None
        assert host.read("/proc/4194305/comm") is None and host.link("/proc/4194305/exe") is None
        assert host.list("/proc/4194305/fd") == []


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777])
def test_modes_are_those_meant_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    host = Host(str(tmp_path))
    before = os.umask(umask)
    try:
        host.write("/etc/deep/er/a", "x")
        host.append("/etc/log", "x", mode=0o640)
        host.make_directory("/run/ours", 0o700)
        host.make_directory("/run/theirs", 0o755)
        shown = host.run(["sh", "-c", "umask"]).stdout.strip()
    finally:
        os.umask(before)
    modes = {path: host.mode(path) for path in ("/etc", "/etc/deep", "/etc/deep/er", "/etc/deep/er/a", "/etc/log",
                                                "/run", "/run/ours", "/run/theirs")}
    assert modes == {"/etc": 0o755, "/etc/deep": 0o755, "/etc/deep/er": 0o755, "/etc/deep/er/a": 0o644,
                     "/etc/log": 0o640, "/run": 0o755, "/run/ours": 0o700, "/run/theirs": 0o755}
    assert shown == "0022"


def test_a_write_keeps_access_lists_and_other_attributes(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    host.write("/etc/a", "x", mode=0o640)
    try:
        os.setxattr(host.path("/etc/a"), "user.note", b"\xff theirs")
    except OSError:
        pytest.skip("no extended attributes here")
    before = host.ownership("/etc/a")
    host.write("/etc/a", "y")
    assert host.ownership("/etc/a") == before
    assert os.getxattr(host.path("/etc/a"), "user.note") == b"\xff theirs"


def test_globs_match_as_a_shell_does(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    for name in ("/a/b1/x.ko", "/a/b2/deep/x.ko.xz", "/a/b2/.hidden/x.ko", "/a/.b3/x.ko", "/a/c/x.ko"):
        host.write(name, "")
    os.symlink("/a", host.path("/a/b1/loop"))
    assert host.glob("/a/b*/**/x.ko*") == ["/a/b1/x.ko", "/a/b2/deep/x.ko.xz"]
    assert host.glob("/a/*") == ["/a/b1", "/a/b2", "/a/c"]
    assert host.glob("/a/.b?/x.ko") == ["/a/.b3/x.ko"]
    assert host.glob("/a/c/x.ko") == ["/a/c/x.ko"] and host.glob("/a/c/y.ko") == [] and host.glob("/none/*/*") == []


class TestCommands:
    def test_at_the_time_out_its_children_end_too(self, tmp_path: Path) -> None:
        pids = tmp_path / "pids"
        with pytest.raises(CommandFailed, match="had not ended after") as failed:
            Host().run(["sh", "-c", "echo begun; sh -c 'sleep 60 & echo $! > %s; wait' & wait" % pids], timeout=1)
        assert failed.value.details["stdout"] == "begun\n"
        deadline = time.monotonic() + 10
        while alive(int(pids.read_text())) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not alive(int(pids.read_text()))

    def test_a_daemon_that_holds_the_pipe_is_not_waited_for(self) -> None:
        began = time.monotonic()
        done = Host().run(["sh", "-c", "sleep 60 & echo $!"], timeout=50)
        assert time.monotonic() - began < 30
        assert done.rc == 0 and alive(int(done.stdout))
        os.kill(int(done.stdout), 9)

    def test_one_that_left_its_group_does_not_hold_us_after_the_kill(self) -> None:
        began = time.monotonic()
        with pytest.raises(CommandFailed) as failed:
            Host().run(["sh", "-c", "setsid sleep 60 & echo $!; sleep 60"], timeout=1)
        assert time.monotonic() - began < 30
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(failed.value.details["stdout"]), 9)

    def test_of_much_output_the_ends_are_kept(self) -> None:
        done = Host().run(["sh", "-c", "echo first; head -c 60000000 /dev/zero | tr '\\0' x; echo; echo last"])
        assert done.stdout.startswith("first\nxxx") and done.stdout.endswith("xxx\nlast\n")
        lost = 60_000_012 - 2 * hosts.OUTPUT_BYTES
        assert "\n[%d bytes are left out here]\n" % lost in done.stdout
        assert len(done.stdout) < 2 * hosts.OUTPUT_BYTES + 100

    def test_much_goes_in_and_out_at_once(self) -> None:
        text = "0123456789" * 200_000
        assert Host().run(["cat"], stdin=text).stdout == text
        assert Host().run(["true"], stdin=text).rc == 0

    def test_a_program_that_is_none_is_an_answer(self, tmp_path: Path) -> None:
        empty, closed = tmp_path / "empty", tmp_path / "closed"
        empty.touch(mode=0o755)
        closed.write_text("#!/bin/sh\n")
        closed.chmod(0o644)
        assert Host().run([str(empty)], check=False).rc == 126
        with pytest.raises(CommandFailed, match="ended with 126: .*cannot be executed: Exec format error"):
            Host().run([str(empty)])
        assert Host().run([str(closed)], check=False).rc == 126
        assert Host().run([str(tmp_path)], check=False).rc == 126
        assert Host().run([str(empty) + "/x"], check=False).rc == 127


def alive(pid: int) -> bool:
    return Host().process_started(pid) != ""


def test_who_holds_a_lock_is_told(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    host.write("/lock", "")
    ready, done = FORK.Event(), FORK.Event()

    def hold() -> None:
        with open(host.path("/lock"), "r+") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            ready.set()
            done.wait(30)

    assert host.holder("/lock") == host.holder("/none") == 0
    process = FORK.Process(target=hold)
    process.start()
    assert ready.wait(30)
    assert host.holder("/lock") == process.pid
    done.set()
    process.join(30)
    assert host.holder("/lock") == 0


def isolated(words: List[str], code: str, *arguments: str) -> str:
    """What a Python program prints in namespaces of its own (words for unshare(1)); skips where there are none."""
    probe = subprocess.run(["unshare", *words, "true"], capture_output=True, check=False)
    if probe.returncode != 0:
        pytest.skip("no namespaces here")
    told = "import sys; sys.path.insert(0, %r)\nfrom %s import Host\n%s" % (
        str(workspace.collections_root()), Host.__module__, code)
    done = subprocess.run(["unshare", *words, sys.executable, "-B", "-c", told, *arguments], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_lock_that_is_held_outside_of_our_namespace_is_held(tmp_path: Path) -> None:
    with open(tmp_path / "lock", "w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        told = isolated(["--pid", "--fork"], "sys.stdout.write(str(Host(sys.argv[1]).holder('/lock')))", str(tmp_path))
    assert told == "-1"


def test_a_directory_of_drop_ins_that_is_mounted_from_the_same_file_system(tmp_path: Path) -> None:
    """rename(2) crosses no mount; what is written beside has to lie in the directory then."""
    for directory in ("etc/a b.d", "elsewhere"):
        (tmp_path / directory).mkdir(parents=True)
    isolated(["--mount"], """
import subprocess
subprocess.run(["mount", "--bind", sys.argv[1] + "/elsewhere", sys.argv[1] + "/etc/a b.d"], check=True)
host = Host(sys.argv[1])
host.write("/etc/a b.d/ours", "one")
host.write("/etc/a b.d/ours", "two")
""", str(tmp_path))
    assert (tmp_path / "elsewhere/ours").read_text() == "two"
    assert os.listdir(tmp_path / "elsewhere") == ["ours"] and os.listdir(tmp_path / "etc") == ["a b.d"]


def test_a_machine_is_as_old_as_its_first_process() -> None:
    """One in a container is younger than the kernel that tells btime."""
    btime = int(next(line.split()[1] for line in Path("/proc/stat").read_text().splitlines() if "btime" in line))
    ticks = int(Path("/proc/1/stat").read_text().rpartition(")")[2].split()[19])
    assert abs(Host().booted() - btime - ticks / os.sysconf("SC_CLK_TCK")) < 2


class TestConversation:
    """A command that answers each line with one."""

    REPEATS = "import sys\nfor line in sys.stdin: print(line.strip() * 2, flush=True)"

    def test_it_is_asked_often(self) -> None:
        with Host().conversation([sys.executable, "-c", self.REPEATS]) as talk:
            for word in ("one", "two", "x" * (1 << 20)):
                assert talk.ask(word, 60).stdout == word * 2 + "\n"
            assert talk.ask("", 60).rc == 0

    def test_how_it_ended_is_the_answer(self) -> None:
        words = "import sys; print(input()); input(); print('half', end='', flush=True); sys.exit('no more')"
        with Host().conversation([sys.executable, "-c", words]) as talk:
            assert talk.ask("first", 60).stdout == "first\n"
            for _time in range(2):
                done = talk.ask("second", 60)
                assert (done.rc, done.stdout, done.stderr) == (1, "half", "no more\n")

    def test_a_missing_program_is_an_answer(self) -> None:
        with Host().conversation(["/nowhere/program"]) as talk:
            assert talk.ask("anybody there", 60).rc == 127

    def test_one_that_hangs_is_ended_with_what_it_said(self) -> None:
        words = "import sys, time; print('waits', file=sys.stderr, flush=True); time.sleep(600)"
        with Host().conversation([sys.executable, "-c", words], ("the", "program")) as talk:
            with pytest.raises(CommandTimedOut, match="waits") as raised:
                talk.ask("anybody there", 2)
            assert "Found: the program had not ended after 2 s" in str(raised.value)
            assert talk.ask("anybody there", 60).rc == -9

    def test_one_may_take_its_time_as_long_as_it_says_something(self) -> None:
        words = ("import sys, time; input()\n"
                 "for number in range(6): print(number, file=sys.stderr, flush=True); time.sleep(0.5)\n"
                 "print('done', flush=True); input(); print('silent', file=sys.stderr, flush=True); time.sleep(600)")
        with Host().conversation([sys.executable, "-c", words]) as talk:
            assert talk.ask("first", 60, silence=2).stdout == "done\n"
            with pytest.raises(CommandTimedOut, match="it said last: 'silent'"):
                talk.ask("second", 60, silence=2)

    def test_but_no_longer_than_in_all(self) -> None:
        words = "import sys, time\nwhile True: print('still', file=sys.stderr, flush=True); time.sleep(0.1)"
        with Host().conversation([sys.executable, "-c", words]) as talk:
            with pytest.raises(CommandTimedOut, match="had not ended after 3 s"):
                talk.ask("first", 3, silence=2)

    def test_it_ends_with_the_conversation(self, tmp_path: Path) -> None:
        words = "import os; print(os.getpid(), flush=True); input(); input()"
        with Host().conversation([sys.executable, "-c", words]) as talk:
            pid = int(talk.ask("who are you", 60).stdout)
        assert not Path("/proc/%d" % pid).exists()


def test_what_is_read_from_memory_lies_in_no_file_system_and_is_gone_afterwards(tmp_path: Path) -> None:
    with Host(str(tmp_path)).in_memory(b"a key") as path:
        assert Path(path).read_bytes() == Path(path).read_bytes() == b"a key"
        assert "memfd" in os.readlink(path)
    assert not os.path.exists(path) and list(tmp_path.iterdir()) == []


class TestNewRecords:
    """Of a socket that keeps its messages apart, as the kernel's log does its records."""

    @pytest.fixture
    def ends(self) -> Iterator[Tuple[socket.socket, hosts.NewRecords]]:
        kernel, reader = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reader.setblocking(False)
        with kernel, reader:
            yield kernel, hosts.NewRecords(reader.fileno())

    def test_what_comes_is_waited_for_and_read_once(self, ends: Tuple[socket.socket, hosts.NewRecords]) -> None:
        kernel, records = ends
        assert not records.wait(0)
        kernel.send(b"6,1,2,-;one")
        kernel.send(b"6,2,3,-;two\n SUBSYSTEM=net")
        assert records.wait(30)
        assert records.read() == ["6,1,2,-;one", "6,2,3,-;two\n SUBSYSTEM=net"]
        assert not records.wait(0) and records.read() == []

    def test_of_a_flood_a_part_is_read(
        self, ends: Tuple[socket.socket, hosts.NewRecords], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(hosts, "_MOST_RECORDS", 3)
        for _each in range(5):
            ends[0].send(b"6,1,2,-;x")
        assert [len(ends[1].read() or ()) for _each in range(3)] == [3, 2, 0]

    @pytest.mark.parametrize("number, is_lost", [(errno.EPIPE, True), (errno.ENODEV, False)])
    def test_what_was_overwritten_is_told_and_an_end_is_an_error(
        self, ends: Tuple[socket.socket, hosts.NewRecords], monkeypatch: pytest.MonkeyPatch, number: int, is_lost: bool
    ) -> None:
        skipped: List[int] = []
        monkeypatch.setattr(os, "lseek", lambda *words: skipped.append(words[2]))
        monkeypatch.setattr(os, "read", lambda *_words: (_ for _ in ()).throw(OSError(number, "")))
        if is_lost:
            assert ends[1].read() is None and skipped == [os.SEEK_END]
        else:
            with pytest.raises(OSError):
                ends[1].read()

    def test_without_a_log_of_the_kernel_nobody_can_wait(self, tmp_path: Path) -> None:
        host = Host(str(tmp_path))
        assert host.new_records() is None
        (tmp_path / "dev").mkdir()
        os.mkfifo(tmp_path / "dev/kmsg")
        assert host.new_records() is None

    def test_that_of_this_machine_begins_at_its_end(self) -> None:
        records = Host().new_records()
        if records is None:
            pytest.skip("this machine does not let us read its kernel's log")
        assert len(records.read() or ()) < len(Host().kernel_log() or ())
        records.close()


def test_a_log_is_read_from_a_record_on() -> None:
    """That of this machine, where it lets us."""
    whole = Host().kernel_log()
    if not whole:
        pytest.skip("this machine does not let us read its kernel's log")
    numbers = [int(record.split(",", 2)[1]) for record in whole]
    found = Host().kernel_log(numbers[-1])
    assert found is not None and int(found[0].split(",", 2)[1]) == numbers[-1]


def test_a_place_is_occupied_until_its_owner_dies_and_says_whose_it_is(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    ready = FORK.Event()

    def occupy() -> None:
        with host.occupied("/lock", "the first, with a long name") as is_ours:
            assert is_ours
            ready.set()
            time.sleep(60)

    process = FORK.Process(target=occupy)
    process.start()
    assert ready.wait(60)
    with host.occupied("/lock", "mine") as is_ours:
        assert not is_ours and host.read("/lock") == "the first, with a long name"
    process.kill()
    process.join()
    with host.occupied("/lock", "mine") as is_ours:
        assert is_ours and host.read("/lock") == "mine"


def test_a_place_is_occupied_where_there_is_none_for_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwrite", lambda *_words: (_ for _ in ()).throw(OSError(errno.ENOSPC, "")))
    with Host(str(tmp_path)).occupied("/lock", "mine") as is_ours:
        assert is_ours
