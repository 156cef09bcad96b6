# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""rpm's database, its keys, and the files that dnf reads: with rpm itself where it has a say."""
from __future__ import annotations

import base64
import http.server
import shutil
import threading
from functools import partial
from pathlib import Path
from typing import Any, List, Sequence

import pytest
import scratch_rpm
from rpm_machine import Quiet
from scratch_apt import keyring as key_of
from scratch_rpm import OPEN, V580, Root, built

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import CommandFailed, CommandResult, Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver import archive
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.backends import rpm_offers
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.backends.dnf import Dnf as Backend
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.observation import Observation, OfRpm
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.record import Record, is_archived
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt import keys
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.dnf import history, locks, transaction
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.dnf.index import parse_artifact, simulation
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.dnf.manager import DNF
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.model import Repository
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.rpm import (
    database,
    fetching,
    files,
    keyring,
    repositories,
)

KERNELS = [package for package in scratch_rpm.OF_SYSTEM if package.name == "kernel-core"]
TOOLS = [package for package in scratch_rpm.OF_SYSTEM if package.name == "tool"]


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "root")


def put(root: Root, *packages: scratch_rpm.Made) -> None:
    """Into the database alone, as a transaction that was stopped leaves them."""
    root.rpm("-i", "--justdb", "--nodeps", "--force", "--noscripts", *(str(built(package)) for package in packages))


# the database


def test_without_a_database_there_are_no_packages(tmp_path: Path) -> None:
    assert database.installed(Host(str(tmp_path))) == {}


def test_a_database_that_cannot_be_read_is_not_an_empty_one(root: Root) -> None:
    for path in (root.path / "var/lib/rpm").glob("rpmdb.sqlite*"):
        path.unlink()
    (root.path / "var/lib/rpm/rpmdb.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(CommandFailed) as told:
        database.installed(root.host)
    assert "rpm --rebuilddb" in told.value.remedy


def test_packages_are_told_with_epoch_version_and_release_and_keys_are_none(root: Root) -> None:
    put(root, *scratch_rpm.driver(scratch_rpm.V580)[:1], TOOLS[0])
    assert {name: package.version for name, package in root.packages().items()} == {
        "nvidia-driver-cuda": "3:580.178.04-1.el9", "tool": "1.0-1.el9"}


def test_rpm_is_asked_once_as_long_as_its_database_is_the_same(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: List[Sequence[str]] = []
    run = Host.run
    monkeypatch.setattr(Host, "run", lambda host, argv, **more: asked.append(argv) or run(host, argv, **more))
    put(root, TOOLS[0])
    first = root.packages()
    number = len(asked)
    first.clear()
    assert set(root.packages()) == {"tool"} and len(asked) == number, "and what is made of an answer is the caller's"
    root.rpm("-e", "--justdb", "tool")
    put(root, KERNELS[0])
    assert set(root.packages()) == {"kernel-core-5.14.0-570.el9"} and len(asked) == 2 * number


@pytest.mark.parametrize("rc, stderr", [(-9, ""), (6, "error: SELECT ...: database disk image is malformed")])
def test_whether_kernels_may_be_there_beside_each_other_is_told_or_refused(
    root: Root, monkeypatch: pytest.MonkeyPatch, rc: int, stderr: str
) -> None:
    """Else all but one would be leftovers to erase, as long as the database stays as it is."""
    put(root, *KERNELS)
    run = Host.run
    told = CommandResult((), rc, "no package provides kernel\n", stderr)
    monkeypatch.setattr(Host, "run", lambda host, argv, **more: (
        told if "--whatprovides" in argv else run(host, argv, **more)))
    with pytest.raises(CommandFailed, match="rpm_database_unreadable"):
        root.packages()
    monkeypatch.setattr(Host, "run", run)
    assert database.leftovers(root.packages()) == () and len(root.packages()) == len(KERNELS)


def test_what_may_be_another_database_is_read_each_time(root: Root) -> None:
    """Which of two rpm reads is a matter of its configuration; and what SQLite has in its log may not be seen yet."""
    put(root, TOOLS[0])
    assert database.stamps(root.host)
    (root.path / "usr/lib/sysimage/rpm").mkdir(parents=True)
    (root.path / "usr/lib/sysimage/rpm/rpmdb.sqlite").write_text("of the image")
    assert database.stamps(root.host) == ()
    shutil.rmtree(root.path / "usr/lib/sysimage/rpm")
    (root.path / "usr/lib/sysimage/rpm").symlink_to("../../../var/lib/rpm")
    assert database.stamps(root.host), "one, by two names"
    (root.path / "var/lib/rpm/rpmdb.sqlite-wal").write_bytes(b"x")
    assert database.stamps(root.host) == ()


def test_berkeley_db_is_read_each_time(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files do not tell what other processes have changed in memory."""
    put(root, TOOLS[0])
    assert database.stamps(root.host)
    for path in (root.path / "var/lib/rpm").glob("rpmdb.sqlite*"):
        path.unlink()
    root.write("/var/lib/rpm/Packages", "")
    told = iter(("", "1\t1\ttool\tx86_64\t0\t1.0\t1\n"))
    monkeypatch.setattr(database, "_query", lambda *_words: CommandResult((), 0, next(told), ""))
    monkeypatch.setattr(database, "_several", lambda _host: frozenset())
    assert (root.packages(), set(root.packages())) == ({}, {"tool"})


def test_every_kernel_is_told_and_none_is_a_leftover(root: Root) -> None:
    put(root, *KERNELS)
    assert {name: package.state for name, package in root.packages().items()} == dict.fromkeys(
        ("kernel-core-5.14.0-640.el9", "kernel-core-5.14.0-611.el9", "kernel-core-5.14.0-570.el9"), "installed")
    assert root.packages()["kernel-core-5.14.0-640.el9"].version == "5.14.0-640.el9"


@pytest.mark.parametrize("before, came", [(TOOLS[0], TOOLS[2]), (TOOLS[2], TOOLS[0])])
def test_what_a_stopped_upgrade_or_downgrade_has_not_erased_is_a_leftover(
    root: Root, before: scratch_rpm.Made, came: scratch_rpm.Made
) -> None:
    """Of the one that came last are the files."""
    put(root, before)
    put(root, came)
    packages, left = root.packages(), database.long_name("tool", before.evr)
    assert database.leftovers(packages) == (left,)
    assert packages[left].unfinished and packages["tool"].installed and packages["tool"].version == came.evr
    assert DNF.interrupted(root.host)


def test_what_is_there_twice_in_one_version_is_no_leftover_to_erase_and_goes_once_or_whole(root: Root) -> None:
    version = TOOLS[2].evr
    packages = database.named([("tool", "x86_64", each) for each in (version, TOOLS[0].evr, version)])
    assert database.twice(packages) == {"tool": version} == dict(history.unfinished(root.host, packages).doubtful)
    assert database.leftovers(packages) == ("tool-1.0-1.el9",)
    assert database.labels(packages, database.leftovers(packages)) == ["tool-1.0-1.el9.x86_64"]
    goes = ("goes", "tool", "x86_64", version, 0, 0, False)
    assert simulation([goes], packages).removes == ("tool-2.0-1.el9",)
    assert simulation([goes, goes], packages).removes == ("tool", "tool-2.0-1.el9")


def test_a_leftover_is_erased_by_its_architecture() -> None:
    """The other one may be there in that version, and is to stay."""
    packages = database.named([("libdrm", arch, version) for version in ("1:1-1", "2-1")
                               for arch in ("x86_64", "i686") if (arch, version) != ("x86_64", "2-1")])
    assert database.labels(packages, database.leftovers(packages)) == ["libdrm-1-1.i686"]


def test_what_came_last_is_told_by_its_time_and_within_a_second_by_its_number() -> None:
    """A database of EL 8 that was built anew has its records in another order."""
    told = "".join("%s\t%s\ttool\tx86_64\t0\t%s\t1\n" % row for row in ((8, 10, "2"), (9, 2, "1"), (9, 10, "3")))
    assert [version for _name, _arch, version in database.parse(told)] == ["2-1", "1-1", "3-1"]


def test_the_second_architecture_has_it_in_its_name() -> None:
    packages = database.named([("libdrm", "x86_64", "2-1"), ("libdrm", "i686", "2-1"), ("tzdata", "noarch", "1-1")])
    assert set(packages) == {"libdrm", "libdrm.i686", "tzdata"}


@pytest.mark.parametrize("first, second", [("i686", "x86_64"), ("x86_64", "i686")])
def test_of_two_architectures_each_package_has_its_own_file(tmp_path: Path, first: str, second: str) -> None:
    """For the way back, for what is fetched, and for what a stopped transaction has left."""
    name, version = "nvidia-driver-cuda-libs", "3:580.178.04-1.el9"
    kept = tuple("%s-580.178.04-1.el9.%s.rpm" % (name, each) for each in (first, second))
    both = dict.fromkeys((name, name + ".i686"), version)
    there = rpm_offers.at_hand(Host(str(tmp_path)), Observation(kept=kept), Record("580.178.04", "open", "", both))
    files = {each: path.rsplit(".", 2)[1] for each, path in there.items()}
    assert files == {name: "x86_64", name + ".i686": "i686"}
    left = history.Unfinished(doubtful=both)
    finish, = Backend().finishing_steps(Observation(kept=kept, of_rpm=OfRpm(left=left)), HostFacts(), False, [])
    assert {each: path.rsplit(".", 2)[1] for each, path in finish.parameters["files"].items()} == files
    assert not is_archived(name + ".i686", version, [each for each in kept if "x86_64" in each])


def test_modules_of_suse_have_their_version_in_their_name_and_are_leftovers_unless_they_may_be_there() -> None:
    name = "nvidia-open-driver-G06-signed-cuda-kmp-default"
    rows = [(name, "x86_64", "580.%s_k6.4.0_150700.51-1.1" % number) for number in ("95.05", "126.09")]
    older, newer = ("%s-%s" % (name, version) for _name, _arch, version in rows)
    for several, state in ((set(), database.LEFTOVER), ({rows[0]}, "installed"), (set(rows), "installed")):
        packages = database.named(rows, several)
        assert {each: package.state for each, package in packages.items()} == {newer: "installed", older: state}
    assert set(database.named([(name + "-devel", "x86_64", "580.126.09-1.1")])) == {name + "-devel"}


# keys


def test_a_key_is_imported_once_and_taken_back_by_whom_it_came(root: Root) -> None:
    root.write("/etc/pki/rpm-gpg/ours", key_of("one").public)
    there = keyring.trusted(root.host)
    step, = keyring.import_steps("driver", "/etc/pki/rpm-gpg/ours", key_of("one").public, there)
    keyring.import_key(root.host, Journal(root.host), step)
    after = keyring.trusted(root.host)
    assert set(after.values()) - set(there.values()) == {(key_of("one").fingerprint,)}
    assert keyring.import_steps("driver", "/etc/pki/rpm-gpg/ours", key_of("one").public, after) == []
    ours = keyring.ours(Journal(root.host), "driver", after)
    for each in keyring.forget_steps("driver", ours):
        keyring.forget_key(root.host, Journal(root.host), each)
    assert keyring.trusted(root.host) == there


def test_a_key_that_was_there_before_is_not_ours(root: Root) -> None:
    """The second key signs the distribution's own packages."""
    there = keyring.trusted(root.host)
    assert keyring.import_steps("driver", "/x", key_of("two").public, there) == []
    assert keyring.ours(Journal(root.host), "driver", there) == ()


def test_a_file_that_is_another_key_by_now_is_not_imported(root: Root) -> None:
    step, = keyring.import_steps("driver", "/etc/pki/rpm-gpg/ours", key_of("one").public, {})
    root.write("/etc/pki/rpm-gpg/ours", key_of("three").public)
    with pytest.raises(GpuOpsError):
        keyring.import_key(root.host, Journal(root.host), step)
    assert (key_of("three").fingerprint,) not in keyring.trusted(root.host).values()


def test_a_key_is_read_from_a_path_a_text_and_an_address(root: Root) -> None:
    text = key_of("one").public
    root.write("/etc/pki/rpm-gpg/ours", text)
    read = [fetching.read_key(root.host, name) for name in (text, "/etc/pki/rpm-gpg/ours")]
    assert read[0] == read[1]
    with pytest.raises(GpuOpsError) as told:
        fetching.read_key(root.host, "http://127.0.0.1:9/key")
    assert "http://127.0.0.1:9/key" in told.value.found


class _Proxy(http.server.BaseHTTPRequestHandler):
    """One that asks who is there, and has every address itself."""

    def do_GET(self) -> None:
        told = "Basic " + base64.b64encode(b"svc:pa$$ \"word\"").decode()
        known = self.headers.get("Proxy-Authorization") == told
        self.send_response(200 if known else 407)
        if not known:
            self.send_header("Proxy-Authenticate", 'Basic realm="proxy"')
        text = key_of("one").public.encode() if known else b""
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *words: Any) -> None:
        """Not among what the tests print."""


def test_a_key_is_read_through_the_proxy_that_dnf_logs_in_to(root: Root) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Proxy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    configuration = root.host.read("/etc/dnf/dnf.conf") or ""
    through = "proxy=http://127.0.0.1:%d\n" % server.server_port
    try:
        root.write("/etc/dnf/dnf.conf", configuration + through)
        with pytest.raises(GpuOpsError):
            DNF.read_key(root.host, "http://mirror.invalid/key")
        root.write("/etc/dnf/dnf.conf", configuration + through
                   + 'proxy_username=svc\nproxy_password=pa$$ "word"\n')
        assert DNF.read_key(root.host, "http://mirror.invalid/key") == keys.read(
            key_of("one").public.encode()).armoured
        root.write("/etc/dnf/dnf.conf", configuration + "proxy=_none_\n")
        with pytest.raises(GpuOpsError) as told:
            DNF.read_key(root.host, "http://127.0.0.1:9/key")
        assert "_none_" not in told.value.found
    finally:
        server.shutdown()
        server.server_close()


# files


def test_a_repository_is_checked_with_its_key(root: Root) -> None:
    made = Repository("https://mirror.invalid/rhel9", key_of("one").public, "/etc/pki/rpm-gpg/ours", id="ours")
    files = DNF.repository_files(made)
    options = repositories.parse(files["/etc/yum.repos.d/ours.repo"])["ours"]
    assert (options["gpgcheck"], options["repo_gpgcheck"], options["gpgkey"], options["baseurl"]) == (
        "1", "0", "file:///etc/pki/rpm-gpg/ours", "https://mirror.invalid/rhel9")
    assert files["/etc/pki/rpm-gpg/ours"] == key_of("one").public


@pytest.mark.parametrize("text, found", [
    ("[a]\nbaseurl=https://m.invalid/el$releasever/$basearch/\n", True),
    ("[a]\nbaseurl=https://u:p@m.invalid/el${releasever}/x86_64\n", True),
    ("[a]\nenabled=0\nbaseurl=https://m.invalid/el9/x86_64\n", False),
    ("[a]\nbaseurl=https://m.invalid/el9/x86_64/more\n", False),
    ("no section\n", False),
])
def test_who_names_a_repository_already_is_found(root: Root, text: str, found: bool) -> None:
    root.write("/etc/yum.repos.d/other.repo", text)
    told = repositories.configured_in(
        root.host, ("/etc/yum.repos.d",), "https://m.invalid/el9/x86_64", "/etc/yum.repos.d/ours.repo",
        {"releasever": "9", "basearch": "x86_64"})
    assert told == (("/etc/yum.repos.d/other.repo",) if found else ())


def test_locks_of_others_stay_to_the_byte() -> None:
    theirs = "# mine\nvim-2:9.0-1.el9.*"
    ours = locks.text("driver", {"a": "1-1", "b.i686": "3:2-1"}, theirs)
    assert ours is not None and ours.splitlines()[1:3] == ["a-0:1-1.[!DRIVER]*", "b-3:2-1.[i!DRIVER]686"]
    both = locks.text("toolkit", {"c": "1-1"}, ours)
    assert locks.text("driver", {}, locks.text("toolkit", {}, both)) == theirs
    assert locks.text("driver", {"a": "1-1", "b.i686": "3:2-1"}, ours) == ours
    assert locks.of_others(both) == ["vim-2:9.0-1.el9.*"]


def test_locks_stay_ours_where_the_plugin_has_written_the_list_anew() -> None:
    versions = {"a": "1-1", "b.i686": "3:2-1"}
    anew = "vim-2:9.0-1.el9.*\n%s\n" % "\n".join(reversed([
        line for line in (locks.text("driver", versions, None) or "").splitlines() if not line.startswith("#")]))
    assert locks.of_others(anew) == ["vim-2:9.0-1.el9.*"]
    assert locks.text("driver", versions, anew) == anew
    assert locks.text("driver", {}, anew) == "vim-2:9.0-1.el9.*\n"
    assert locks.of_others(locks.text("driver", {"a": "2-1"}, anew)) == ["vim-2:9.0-1.el9.*"]


@pytest.mark.parametrize("line, held", [
    ("nvidia-driver-cuda", True), ("nvidia-driver-cuda-3:580.178.04-1.el9.*", True), ("nvidia-*", True),
    ("!nvidia-driver-cuda-3:595.91.07-1.el9", True), ("nvidia-driver-cuda-580.178.04-1.el9", True),
    ("nvidia-driver", False), ("nvidia-driver-cuda-libs", False),
])
def test_a_package_that_somebody_has_locked_is_held(line: str, held: bool) -> None:
    assert locks.holds([line], "nvidia-driver-cuda", "3:580.178.04-1.el9") is held


def test_a_host_that_would_not_heed_a_lock_is_told(root: Root) -> None:
    assert [refusal.code for refusal in DNF.hold_refusals(root.host)] == ["packages.no_versionlock_list"]
    root.write(locks.LIST, "")
    assert DNF.hold_refusals(root.host) == []
    root.write(locks.CONFIGURATION, "[main]\nenabled = 0\nlocklist = %s%s\n" % (root.path, locks.LIST))
    assert [refusal.code for refusal in DNF.hold_refusals(root.host)] == ["packages.no_versionlock"]
    root.write(locks.CONFIGURATION, "[main]\nenabled = 1\nlocklist = /elsewhere\n")
    assert "/elsewhere" in DNF.hold_refusals(root.host)[0].found
    (root.path / locks.CONFIGURATION.lstrip("/")).unlink()
    assert "no " + locks.CONFIGURATION in DNF.hold_refusals(root.host)[0].found


# words


def test_dnf_is_asked_with_the_epoch_and_without_what_the_name_has_already() -> None:
    assert transaction.specs({"a": "3:1-1", "b": "1-1", "c.i686": "1-2", "k-5-6": "5-6", "gone": None}) == [
        "a-3:1-1", "b-0:1-1", "c-0:1-2.i686", "gone", "k-0:5-6"]


def test_options_that_a_release_does_not_know_are_left_out() -> None:
    step = {"action": "packages.install", "parameters": {"request": {"a": "1-1"}, "without": ["gone"]}}
    assert transaction.builtin_options(step)["lock_timeout"] == 600
    told = transaction.builtin_options(step, {"name", "state"})
    assert "lock_timeout" not in told
    assert (told["disablerepo"], told["allow_downgrade"], told["nobest"]) == (["gone"], False, False)


def test_an_artifact_of_a_module_is_a_package_in_a_version() -> None:
    assert parse_artifact("nvidia-driver-cuda-3:580.178.04-1.el9.x86_64") == (
        "nvidia-driver-cuda", "3:580.178.04-1.el9")
    assert parse_artifact("nvidia-fabricmanager-0:580.178.04-1.x86_64") == ("nvidia-fabricmanager", "580.178.04-1")
    assert parse_artifact("libdrm-0:2-1.i686") == ("libdrm.i686", "2-1")


def test_the_oldest_kernel_makes_room_and_the_others_stay() -> None:
    rows = [("kernel-core", "x86_64", "5-%d" % number) for number in (1, 2, 3)]
    there = database.named(rows, set(rows))
    items = [("comes", "kernel-core", "x86_64", "5-4", 10, 20, True),
             ("goes", "kernel-core", "x86_64", "5-1", 0, 9, True)]
    done = simulation(items, there)
    assert (done.installs, done.removes) == ({"kernel-core-5-4": "5-4"}, ("kernel-core-5-1",))
    assert (done.download, done.unpacked) == (10, 20)


# files of packages


def test_a_package_file_is_whole_that_is_as_long_as_it_says(tmp_path: Path) -> None:
    """Of every signed one; what a download that was killed leaves is shorter, or empty."""
    host = Host(str(tmp_path))
    signed = sorted(scratch_rpm.nvidia().glob("*.rpm"))
    assert len(signed) > 20
    for file in (built(TOOLS[0]), *signed):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    names = ["/" + path.name for path in sorted(tmp_path.iterdir())]
    assert list(files.whole(host, names)) == names
    data = signed[0].read_bytes()
    for number, torn in enumerate((b"", data[:50], data[:100], data[:300], data[:len(data) // 2], data[:-1],
                                   data + b"0", bytes(len(data)), b"<html>" + data[6:],
                                   data[:104] + b"\xff" * 8 + data[112:])):
        (tmp_path / ("torn-%d.rpm" % number)).write_bytes(torn)
        assert files.whole(host, ["/torn-%d.rpm" % number]) == (), number
    assert files.whole(host, ["/none.rpm"]) == ()


def test_what_a_killed_download_left_is_neither_staged_nor_kept_and_is_fetched_again(root: Root) -> None:
    """librepo writes under the last name."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(scratch_rpm.nvidia())))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    root.configure("nvidia", "http://127.0.0.1:%d/" % server.server_port)
    request = {OPEN: "3:%s-1.el9" % V580, "nvidia-modprobe": "3:%s-1.el9" % V580}
    step = Step("driver", "packages.download", "driver", "a test", change={"before": {}, "after": request},
                parameters={"request": request})
    DNF.download(root.host, step)
    (torn,) = root.path.glob("var/cache/dnf/*/packages/%s*" % OPEN)
    (other,) = root.path.glob("var/cache/dnf/*/packages/nvidia-modprobe*")
    torn.write_bytes(b"")
    assert DNF.archives(root.host) == (other.name,) == tuple(archive.fetched(root.host))
    archive.keep(root.host, request)
    assert archive.kept(root.host) == (other.name,)
    DNF.download(root.host, step)
    archive.keep(root.host, request)
    server.shutdown()
    server.server_close()
    assert DNF.archives(root.host) == archive.kept(root.host) == (torn.name, other.name)
    (root.path / archive.STORE.lstrip("/") / torn.name).write_bytes(b"")
    archive.prune(root.host, request)
    assert archive.kept(root.host) == (other.name,)
