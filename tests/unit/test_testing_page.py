# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""docs/testing.md: what it names is there, and the scenario that it shows is one of ours."""
from __future__ import annotations

import re
from typing import List

import pytest
from workspace import REPOSITORY

PAGE = (REPOSITORY / "docs" / "testing.md").read_text()
NAMED: List[str] = sorted(set(re.findall(r"`([^`\n]+)`", PAGE)))
SOURCES = "\n".join(path.read_text() for path in (REPOSITORY / "tests").rglob("test_*.py"))


@pytest.mark.parametrize("name", [name for name in NAMED if re.fullmatch(r"test_\w+|Test\w+", name)])
def test_a_test_that_the_page_names_is_there(name: str) -> None:
    assert re.search(r"(def|class) %s\b" % name, SOURCES)


@pytest.mark.parametrize("name", [name for name in NAMED if name.startswith(("unit/", "integration/"))])
def test_a_file_that_the_page_names_is_there(name: str) -> None:
    assert list((REPOSITORY / "tests").glob(name))


def test_the_scenario_that_the_page_shows_is_one_of_ours() -> None:
    (shown,) = re.findall(r"^```\n(# .*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    texts = [path.read_text() for path in (REPOSITORY / "tests" / "unit").glob("*/plans/*.txt")]
    assert any(shown in text for text in texts)
