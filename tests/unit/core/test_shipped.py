# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Modules whose code comes from an archive: as Ansible lays them out on a host, in processes of their own."""
from __future__ import annotations

import hashlib
import io
import json
import marshal
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest
from workspace import REPOSITORY, collections_root

from ansible_collections.gpuops.nvidia.plugins.module_utils import shipped
from ansible_collections.gpuops.nvidia.plugins.module_utils.core import libraries
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal, PackageChange
from ansible_collections.gpuops.nvidia.plugins.plugin_utils.libraries import archive as made

UTILS = Path(*shipped.PACKAGE.split("."))
# What AnsiballZ packs: the module, what it imports, and the packages above that
PAYLOAD = ("__init__.py", "shipped.py")
RUN = ("import sys; sys.path[:0] = [sys.argv[1]]; from ansible_collections.gpuops.nvidia.plugins.module_utils import "
       "shipped; from ansible.module_utils import basic; basic._ANSIBLE_PROFILE = 'legacy'; "
       "basic._ANSIBLE_ARGS = b'{\"ANSIBLE_MODULE_ARGS\": {}}'; shipped.run('gpu_info'); ")
ASKED = RUN.replace("shipped.run('gpu_info')", (
    "shipped.hold(sys.argv[2]); import importlib; "
    "print(*(importlib.import_module(name).__file__ for name in ('pynvml', shipped.PACKAGE + '.core.plan')))"))


@pytest.fixture
def payload(tmp_path: Path) -> Path:
    directory = tmp_path / "payload" / UTILS
    directory.mkdir(parents=True)
    for name in PAYLOAD:
        shutil.copy(REPOSITORY / "plugins" / "module_utils" / name, directory)
    return tmp_path / "payload"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    content, path = made()
    kept = tmp_path / Path(path).name
    kept.write_bytes(content)
    return kept


def called(payload: Path, script: str, *words: str, **environment: str) -> str:
    done = subprocess.run([sys.executable, "-c", script, str(payload), *words], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, check=False, env={**os.environ, **environment}, cwd="/")
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def result(payload: Path, path: str) -> Dict[str, Any]:
    return dict(json.loads(called(payload, RUN, **{shipped.VARIABLE: path})))


def test_a_module_takes_its_code_from_the_archive(payload: Path, archive: Path) -> None:
    assert result(payload, str(archive))["observation"]["pci"]


@pytest.mark.parametrize("left", [None, 0, 5000])
def test_an_archive_that_is_not_whole_is_asked_for(payload: Path, archive: Path, left: int) -> None:
    """A power cut leaves less of it, under the same name."""
    whole = archive.read_bytes()
    archive.unlink() if left is None else archive.write_bytes(whole[:left])
    told = result(payload, str(archive))
    assert (told["failed"], told["libraries_missing"]) == (True, True)
    archive.write_bytes(whole)
    assert "failed" not in result(payload, str(archive))


def test_a_module_that_nobody_ships_the_code_of_says_so(payload: Path) -> None:
    told = result(payload, "")
    assert told["failed"] and "run the module through Ansible by its full name, gpuops.nvidia.gpu_info" in told["msg"]


def test_a_python_that_is_too_old_is_told(payload: Path, archive: Path) -> None:
    """ansible-core 2.16 still talks to 3.6, and what we are written in would fail there anywhere."""
    told = json.loads(called(payload, RUN.replace("import sys;", "import sys; sys.version_info = (3, 8, 18);"),
                             **{shipped.VARIABLE: str(archive)}))
    assert told["failed"] and "Wanted: Python 3.9 or newer on the host" in told["msg"]
    assert told["code"] == "host.python_too_old" and told["msg"].endswith("[%s]" % told["code"])
    assert told["refusals"] == [{name: told[name] for name in ("code", "found", "wanted", "remedy", "option")}]
    assert "libraries_missing" not in told


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A host on which something is ours."""
    made_host = Host(str(tmp_path / "root"))
    Journal(made_host).set_packages("toolkit", {"nvidia-container-toolkit": PackageChange(None, "1.18.0-1")})
    return made_host


@pytest.fixture
def sent(host: Host, archive: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The archive as the controller has put it on the host for a task."""
    path = Path(host.path("/root/.ansible/tmp/%s" % archive.name))
    path.parent.mkdir(parents=True)
    archive.rename(path)
    monkeypatch.setenv(shipped.VARIABLE, "/root/.ansible/tmp/%s" % path.name)
    return path


def directory(host: Host) -> Path:
    return Path(host.path(shipped.DIRECTORY))


def written(path: Path) -> Tuple[int, int, int]:
    """What changes when a file is written or another takes its place. That it was read does not count."""
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def test_what_a_writer_has_kept_is_taken_from_then_on(
    payload: Path, host: Host, sent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries.keep(host)
    kept = directory(host) / sent.name
    compiled = Path(shipped.compiled(str(kept)))
    first = written(compiled)
    assert kept.read_bytes() == sent.read_bytes()
    assert [path.stat().st_mode & 0o777 for path in (kept.parent, kept, compiled)] == [0o700, 0o600, 0o600]
    for used in ("/root/.ansible/tmp", shipped.DIRECTORY):
        monkeypatch.setenv(shipped.VARIABLE, "%s/%s" % (used, sent.name))
        libraries.keep(host)
        assert written(compiled) == first
    kept.unlink()
    for path in called(payload, ASKED, str(compiled)).split():
        assert path.startswith(str(compiled)) and path.endswith(".pyc")
    assert {name[:-1] for name in zipfile.ZipFile(compiled).namelist()} == set(zipfile.ZipFile(sent).namelist())


@pytest.mark.parametrize("left", [0, 5000])
def test_what_a_power_cut_has_left_of_it_is_replaced(host: Host, sent: Path, left: int) -> None:
    kept = directory(host) / sent.name
    kept.parent.mkdir(parents=True, mode=0o777)
    kept.write_bytes(sent.read_bytes()[:left])
    libraries.keep(host)
    assert kept.read_bytes() == sent.read_bytes()


@pytest.mark.parametrize("left", [0, 5000])
def test_what_did_not_come_whole_is_not_kept(host: Host, sent: Path, left: int) -> None:
    sent.write_bytes(sent.read_bytes()[:left])
    libraries.keep(host)
    assert not directory(host).exists()


def test_what_this_python_cannot_compile_is_kept_as_it_is(
    host: Host, sent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library may have a module for newer ones only."""
    with zipfile.ZipFile(sent, "a") as more:
        more.writestr("tomlkit/newer.py", "a newer syntax\n")
    named = sent.with_name(hashlib.sha256(sent.read_bytes()).hexdigest()[:20] + ".zip")
    sent.rename(named)
    monkeypatch.setenv(shipped.VARIABLE, "/root/.ansible/tmp/%s" % named.name)
    libraries.keep(host)
    assert list(directory(host).iterdir()) == [directory(host) / named.name]


def test_it_does_not_take_the_last_room(host: Host, sent: Path) -> None:
    """A record of what is changed needs it more."""
    kept_in = directory(host).parent
    private = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    mount = ["mount", "-t", "tmpfs", "-o", "size=%d" % (libraries.ROOM // 2), "tmpfs", str(kept_in)]
    if subprocess.run([*private, *mount], check=False).returncode:
        pytest.skip("needs a mount namespace of its own")
    script = ("import sys; from ansible_collections.gpuops.nvidia.plugins.module_utils.core import host, libraries; "
              "from pathlib import Path; kept = Path(sys.argv[1], 'var/lib/gpuops'); "
              "(kept / 'state.json').write_text(sys.argv[2]); libraries.keep(host.Host(sys.argv[1])); "
              "print(*sorted(path.name for path in kept.iterdir()))")
    for before in (["true"], mount):
        done = subprocess.run(
            [*private, "sh", "-c", "%s; exec \"$@\"" % " ".join(before), "sh", sys.executable, "-c", script, host.root,
             (kept_in / "state.json").read_text()], env={**os.environ, "PYTHONPATH": str(collections_root())},
            check=True, stdout=subprocess.PIPE, text=True)
        assert done.stdout.split() == (["state.json"] if before is mount else ["lib", "state.json"])


def test_what_nobody_has_used_for_long_goes(host: Host, sent: Path) -> None:
    """Each release, each controller with other libraries and each Python has an archive of its own."""
    libraries.keep(host)
    ours = set(directory(host).iterdir())
    younger = directory(host) / "0123456789abcdef0123.zip"
    older = directory(host) / "0123456789abcdef0123-a70d0d0a.zip"
    torn = directory(host) / ".ansible_tmp0a1b2c3d.zip"
    for path in (younger, older, torn):
        path.write_bytes(b"x")
    for path in (older, torn, *ours):
        os.utime(path, (path.stat().st_atime - libraries.UNUSED_SECONDS - 60,) * 2)
    libraries.keep(host)
    assert set(directory(host).iterdir()) == {*ours, younger}


def test_nothing_is_kept_where_nothing_is_ours(host: Host, sent: Path) -> None:
    libraries.keep(host)
    Journal(host).set_packages("toolkit", {})
    libraries.keep(host)
    assert not directory(host).exists()
    libraries.keep(host)
    assert not directory(host).exists()


def test_a_call_goes_on_when_its_archive_is_changed_or_cleared_away(payload: Path, archive: Path) -> None:
    """Libraries are imported when they are wanted: another run may have ended an uninstall by then. And who logs in
    without root may write the archive that he has sent to root's call."""
    script = RUN.replace("shipped.run('gpu_info')", (
        "import os; shipped.hold(sys.argv[2]); CHANGE; import tomlkit, pynvml; "
        "from ansible_collections.gpuops.nvidia.plugins.module_utils.core import plan; "
        "print(tomlkit.parse('a = 1').as_string())"))
    for change in ("open(sys.argv[2], 'r+b').write(b'x' * 400000)", "os.remove(sys.argv[2])"):
        assert called(payload, script.replace("CHANGE", change), str(archive)) == "a = 1\n"
        if archive.exists():
            archive.write_bytes(made()[0])


def test_what_is_compiled_counts_only_whole(payload: Path, host: Host, sent: Path) -> None:
    libraries.keep(host)
    (compiled,) = directory(host).glob("*-*.zip")
    whole = compiled.read_bytes()
    script = RUN.replace("shipped.run('gpu_info')", "print(shipped.hold(sys.argv[2], private=True))")
    for content, is_good in ((whole, True), (whole[:5000], False), (b"", False),
                             (whole[:5000] + bytes(5000) + whole[10000:], False)):
        compiled.write_bytes(content)
        assert called(payload, script, str(compiled)) == "%s\n" % is_good
    libraries.keep(host)
    assert compiled.read_bytes() == whole


def test_a_fifo_is_not_waited_for(payload: Path, archive: Path) -> None:
    archive.unlink()
    os.mkfifo(archive)
    assert result(payload, str(archive))["libraries_missing"]


@pytest.mark.parametrize("directory_mode, mode, taken", [
    (0o700, 0o600, True), (0o755, 0o644, True), (0o777, 0o600, False), (0o770, 0o600, False), (0o700, 0o666, False),
    (0o700, 0o660, False),
])
def test_what_others_may_write_is_not_imported(
    payload: Path, archive: Path, directory_mode: int, mode: int, taken: bool
) -> None:
    """Who could put it there would be root: it has no hash to be known by."""
    main = tuple("%s/mains/%s.pyc" % (UTILS, name) for name in ("__init__", "gpu_info"))
    planted = io.BytesIO()
    with zipfile.ZipFile(planted, "w") as packed:
        for name, source in zip(main, ("", "def main(): print('planted')")):
            packed.writestr(name, marshal.dumps(compile(source, name, "exec")))
        packed.comment = shipped.SEAL
    beside = archive.parent / "lib"
    beside.mkdir()
    archive.rename(beside / archive.name)
    compiled = Path(shipped.compiled(str(beside / archive.name)))
    compiled.write_bytes(shipped.sealed(planted.getvalue()[:-len(shipped.SEAL)]))
    compiled.chmod(mode)
    beside.chmod(directory_mode)
    told = called(payload, RUN, **{shipped.VARIABLE: str(beside / archive.name)})
    assert told == "planted\n" if taken else json.loads(told)["observation"]


def test_a_payload_of_ours_is_that_one_file() -> None:
    """All else that a module imports would be packed, sent and compiled at every call."""
    for path in sorted((REPOSITORY / "plugins" / "module_utils" / "mains").glob("[!_]*.py")):
        module = REPOSITORY / "plugins" / "modules" / path.name
        lines: List[str] = [line for line in module.read_text().splitlines()
                            if line.startswith(("import ", "from "))]
        ours = "from ..module_utils.shipped import run"
        assert lines == ["from __future__ import annotations", ours], path.name


def test_the_name_of_the_archive_is_its_content() -> None:
    content, path = made()
    assert (content, path) == made()
    assert path == "%s/%s.zip" % (shipped.DIRECTORY, hashlib.sha256(content).hexdigest()[:20])


def test_a_library_that_nobody_has_is_told() -> None:
    with pytest.raises(GpuOpsError, match="no Python library"):
        libraries.require("gpuops_library_of_a_test")
