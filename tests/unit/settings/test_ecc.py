# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""ECC of simulated GPUs is changed by a real nvidia-smi of theirs, and nothing else of the host is another afterwards."""
from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Callable, Iterator, List

import pytest
from reset_host import DCGM, PERSISTENCED, ResetHost

from gpulab import silicon

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

Hosts = Callable[..., ResetHost]
OFF = [{"match": ["all"], "ecc": False}]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    made: List[ResetHost] = []

    def host(profile: str = "t4", gpus: int = 2) -> ResetHost:
        made.append(ResetHost(tmp_path / str(len(made)), profile, gpus))
        return made[-1]

    yield host
    for each in made:
        each.close()


def code(answer: Any) -> str:
    assert "error" in answer, answer
    return str(answer["error"]["code"])


def test_ecc_is_switched_by_a_reset_and_given_back_by_another(hosts: Hosts) -> None:
    host = hosts()
    first = [{"match": [host.uuids()[0]], "ecc": False}]
    done = host.apply(gpus=first)
    assert done["applied"] == ["settings/settings.change_ecc/0000:3b:00.0"], done
    assert [host.told(gpu)["ecc"] for gpu in range(2)] == [False, True]
    assert host.apply(gpus=first)["applied"] == []
    assert [(each["who"], each["end"], each["gpus"]) for each in host.recorded()] == [
        ("settings", "done", host.uuids()[:1])]
    assert "settings/settings.change_ecc/0000:3b:00.0" in host.apply(state="absent")["applied"]
    assert (host.told()["ecc"], host.memory("settings")) == (True, {})
    assert host.apply(state="absent")["applied"] == []
