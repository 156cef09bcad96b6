# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Modules whose code comes from an archive: as Ansible lays them out on a host, in processes of their own."""
from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, Dict, List

import pytest
from workspace import REPOSITORY

from ansible_collections.gpuops.nvidia.plugins.module_utils import shipped
from ansible_collections.gpuops.nvidia.plugins.module_utils.core import libraries
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.plugin_utils.libraries import archive as made

UTILS = Path(*shipped.PACKAGE.split("."))
# What AnsiballZ packs: the module, what it imports, and the packages above that
PAYLOAD = ("__init__.py", "shipped.py")
RUN = ("import sys; sys.path[:0] = [sys.argv[1]]; from ansible_collections.gpuops.nvidia.plugins.module_utils import "
       "shipped; from ansible.module_utils import basic; basic._ANSIBLE_PROFILE = 'legacy'; "
       "basic._ANSIBLE_ARGS = b'{\"ANSIBLE_MODULE_ARGS\": {}}'; shipped.run('gpu_info'); ")
ASKED = RUN.replace("shipped.run('gpu_info')", (
    "shipped.use(sys.argv[2]); import importlib; "
    "print(*(importlib.import_module(name).__file__ for name in ('pynvml', shipped.PACKAGE + '.core.plan')))"))


@pytest.fixture
def payload(tmp_path: Path) -> Path:
    folder = tmp_path / "payload" / UTILS
    folder.mkdir(parents=True)
    for name in PAYLOAD:
        shutil.copy(REPOSITORY / "plugins" / "module_utils" / name, folder)
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
    assert "libraries_missing" not in told


def test_what_is_compiled_once_is_taken_from_then_on(
    payload: Path, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(str(tmp_path))
    kept = Path(host.path(shipped.FOLDER)) / archive.name
    kept.parent.mkdir(parents=True)
    archive.rename(kept)
    monkeypatch.setenv(shipped.VARIABLE, "%s/%s" % (shipped.FOLDER, kept.name))
    compiled = Path(shipped.compiled(str(kept)))
    libraries.keep_compiled(host)
    first = compiled.read_bytes()
    assert compiled.stat().st_mode & 0o777 == 0o600
    libraries.keep_compiled(host)
    assert compiled.read_bytes() == first
    kept.rename(kept.with_suffix(".away"))
    for path in called(payload, ASKED, str(compiled)).split():
        assert path.startswith(str(compiled)) and path.endswith(".pyc")
    assert {name[:-1] for name in zipfile.ZipFile(compiled).namelist()} == set(
        zipfile.ZipFile(kept.with_suffix(".away")).namelist())


def test_what_is_there_for_one_call_is_not_compiled(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(shipped.VARIABLE, str(archive))
    libraries.keep_compiled(Host(str(archive.parent)))
    assert list(archive.parent.glob("*.zip")) == [archive]


def test_a_payload_of_ours_is_that_one_file() -> None:
    """All else that a module imports would be packed, sent and compiled at every call."""
    for path in sorted((REPOSITORY / "plugins" / "module_utils" / "mains").glob("[!_]*.py")):
        module = REPOSITORY / "plugins" / "modules" / path.name
        lines: List[str] = [line for line in module.read_text().splitlines()
                            if line.startswith(("import ", "from "))]
        ours = "from %s.shipped import run" % shipped.PACKAGE
        assert lines == ["from __future__ import annotations", ours], path.name


def test_the_name_of_the_archive_is_its_content() -> None:
    content, path = made()
    assert (content, path) == made()
    assert path == "%s/%s.zip" % (shipped.FOLDER, hashlib.sha256(content).hexdigest()[:20])


def test_a_library_that_nobody_has_is_told() -> None:
    with pytest.raises(GpuOpsError, match="no Python library"):
        libraries.require("gpuops_library_of_a_test")
