# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Files of KEY=VALUE that a package brings: our values in them, and what they were before."""
from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Optional

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core import assignments
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Step

FILE = "/etc/daemon.cfg"
TEXT = """\
# LOG_LEVEL=9 is the most
LOG_LEVEL=4
  LOG_LEVEL = 5
# SOCKET=
MODE=0 \t
EMPTY=
no assignment
"""


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(str(tmp_path))
    host.write(FILE, TEXT)
    return host


def change(host: Host, wanted: Dict[str, str]) -> Optional[Step]:
    """Have a capability's values so; the step, None where nothing is to be done."""
    journal = Journal(host)
    steps = assignments.write_step("fabric", FILE, values(host), wanted, journal.recall("fabric"))
    for step in steps:
        assignments.write(host, journal, step)
    return steps[0] if steps else None


def take_back(host: Host) -> None:
    journal = Journal(host)
    for step in assignments.restore_step("fabric", FILE, values(host), journal.recall("fabric")):
        assignments.restore(host, journal, step)
    assert Journal(host).recall("fabric") == {}


def values(host: Host) -> Dict[str, str]:
    return assignments.values(host.read(FILE) or "")


def test_the_last_value_counts_and_comments_do_not() -> None:
    assert assignments.values(TEXT) == {"LOG_LEVEL": "5", "MODE": "0", "EMPTY": ""}
    assert assignments.keys(TEXT) == ("EMPTY", "LOG_LEVEL", "MODE", "SOCKET")


@pytest.mark.parametrize("changes, before, after", [
    ({"MODE": "1"}, "MODE=0 \t\n", "MODE=1 \t\n"),
    ({"LOG_LEVEL": "3"}, "  LOG_LEVEL = 5\n", "  LOG_LEVEL = 3\n"),
    ({"SOCKET": "/run/s"}, "# SOCKET=\n", "# SOCKET=\nSOCKET=/run/s\n"),
    ({"NEW": "1"}, "no assignment\n", "no assignment\nNEW=1\n"),
    ({"EMPTY": None}, "EMPTY=\n", ""),
    ({"ABSENT": None}, "", ""),
])
def test_the_rest_stays_as_it_is(changes: Dict[str, Optional[str]], before: str, after: str) -> None:
    assert assignments.edited(TEXT, changes) == TEXT.replace(before, after) if before else TEXT


def test_a_file_without_an_end_of_line_gets_one() -> None:
    assert assignments.edited("A=1", {"B": "2"}) == "A=1\nB=2\n"
    assert assignments.edited("A=1\r\n", {"A": "2"}) == "A=2\r\n"
    assert assignments.edited("", {"A": "2"}) == "A=2\n"


def test_taken_back_it_is_what_the_package_brought(host: Host) -> None:
    wanted = {"MODE": "1", "SOCKET": "/run/s", "EMPTY": "x"}
    step = change(host, wanted)
    assert step is not None and step.change["after"] == wanted and "MODE=0" in step.why
    assert change(host, wanted) is None
    change(host, {"MODE": "2", "SOCKET": "/run/s", "EMPTY": "x"})
    take_back(host)
    assert values(host) == {"LOG_LEVEL": "5", "MODE": "0", "EMPTY": ""}
    assert host.read(FILE) == TEXT


def test_what_is_not_wanted_any_more_is_put_back(host: Host) -> None:
    change(host, {"MODE": "1", "SOCKET": "/run/s"})
    change(host, {"SOCKET": "/run/s"})
    assert values(host)["MODE"] == "0" and values(host)["SOCKET"] == "/run/s"
    assert change(host, {"SOCKET": "/run/s"}) is None


def test_an_edit_of_others_is_neither_ours_nor_lost(host: Host) -> None:
    change(host, {"MODE": "1", "EMPTY": "x"})
    host.write(FILE, assignments.edited(host.read(FILE) or "", {"MODE": "7", "LOG_LEVEL": "1"}))
    take_back(host)
    assert values(host) == {"LOG_LEVEL": "1", "MODE": "7", "EMPTY": ""}


def test_a_file_that_a_package_replaced_gives_the_new_values_back(host: Host) -> None:
    change(host, {"MODE": "1"})
    host.write(FILE, "MODE=4\n")
    change(host, {"MODE": "1"})
    take_back(host)
    assert host.read(FILE) == "MODE=4\n"


def test_a_value_that_was_there_before_is_not_ours(host: Host) -> None:
    assert change(host, {"MODE": "0"}) is None
    take_back(host)
    assert host.read(FILE) == TEXT


def test_killed_before_the_write_nothing_is_ours(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_words: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Host, "write", lambda self, name, *words: killed() if name == FILE else None)
        with pytest.raises(KeyboardInterrupt):
            change(host, {"MODE": "1"})
    take_back(host)
    assert host.read(FILE) == TEXT


def test_a_file_that_is_gone_is_told(host: Host) -> None:
    change(host, {"MODE": "1"})
    host.remove(FILE)
    take_back(host)
    with pytest.raises(GpuOpsError, match=FILE):
        change(host, {"MODE": "1"})


def test_values_of_an_option_are_text() -> None:
    assert assignments.wanted_of({"A": True, "B": 3, "C": None, "D": " x "}) == {
        "A": "1", "B": "3", "C": "", "D": "x"}
    for wrong in ({"A": ["x"]}, {"A": "x\ny"}, {"A": {}}):
        with pytest.raises(ValueError, match="A: "):
            assignments.wanted_of(wrong)
