# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The build cache: parts are built once per input, completely or not at all."""
from __future__ import annotations

from pathlib import Path
from typing import Callable, List

import pytest

from gpulab import cache as cache_module
from gpulab.cache import BuildError, Job, Part, Workshop, parts_root
from gpulab.parts.registry import workshop


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUOPS_CACHE", str(tmp_path / "cache"))


def writer(content: str, log: List[str]) -> Callable[[Job], None]:
    def build(job: Job) -> None:
        log.append(job.part_name)
        (job.out / "file").write_text(content)
    return build


def test_a_part_is_built_once() -> None:
    built: List[str] = []
    shop = Workshop([Part("one", "first", writer("1", built))])
    assert not shop.ready("one")
    assert (shop.build("one") / "file").read_text() == "1"
    Workshop([Part("one", "first", writer("1", built))]).build("one")
    assert built == ["one"]


def test_needs_are_built_first_and_handed_over() -> None:
    built: List[str] = []

    def second(job: Job) -> None:
        built.append("two")
        (job.out / "copy").write_text((job.part("one") / "file").read_text())

    shop = Workshop([Part("two", "second", second, needs=("one",)), Part("one", "first", writer("1", built))])
    assert (shop.build("two") / "copy").read_text() == "1"
    assert built == ["one", "two"]


@pytest.mark.parametrize("change", ["text", "file", "name"])
def test_a_changed_input_gives_another_part(tmp_path: Path, change: str) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "a").write_text("1")

    def digest(text: str) -> str:
        return Workshop([Part("one", "first", writer("1", []), inputs=(text, sources))]).digest("one")

    before = digest("v1")
    assert digest("v1") == before
    if change == "file":
        (sources / "a").write_text("2")
    elif change == "name":
        (sources / "a").rename(sources / "b")
    assert digest("v2" if change == "text" else "v1") != before


def test_a_changed_need_changes_what_is_built_from_it() -> None:
    def digest(version: str) -> str:
        return Workshop([Part("one", "first", writer("1", []), inputs=(version,)),
                         Part("two", "second", writer("2", []), needs=("one",))]).digest("two")
    assert digest("v1") != digest("v2")


def test_a_failed_build_leaves_no_part_and_says_what_failed() -> None:
    def build(job: Job) -> None:
        (job.out / "half").write_text("")
        job.run(["sh", "-c", "echo the reason; exit 3"])

    shop = Workshop([Part("one", "first", build)])
    with pytest.raises(BuildError, match="(?s)part one: sh ended with 3.*the reason"):
        shop.build("one")
    assert not shop.ready("one")


def test_the_remains_of_a_killed_build_are_not_taken_for_a_part() -> None:
    built: List[str] = []
    shop = Workshop([Part("one", "first", writer("1", built))])
    remains = parts_root() / (".building-%s" % shop.path("one").name)
    remains.mkdir(parents=True)
    (remains / "stray").write_text("")
    assert sorted(path.name for path in shop.build("one").iterdir()) == ["file"]


def test_an_unknown_part_lists_the_known_ones() -> None:
    with pytest.raises(BuildError, match="there is no part called zero; there are: one"):
        Workshop([Part("one", "first", writer("1", []))]).build("zero")


def test_two_parts_of_one_name_are_refused() -> None:
    part = Part("one", "first", writer("1", []))
    with pytest.raises(ValueError, match="two parts are called one"):
        Workshop([part, part])


def test_all_parts_of_the_laboratory_find_what_they_need() -> None:
    shop = workshop()
    assert set(shop.order(sorted(shop.parts))) == set(shop.parts)
    assert len({shop.path(name) for name in shop.parts}) == len(shop.parts)


def test_a_long_build_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cache_module, "NEWS_SECONDS", 0.1)

    def build(job: Job) -> None:
        job.run(["sh", "-c", "echo half way; sleep 0.4"])

    Workshop([Part("one", "first", build)]).build("one")
    assert "[one] 0 s: half way\n" in capsys.readouterr().err
