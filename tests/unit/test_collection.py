# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is published: the tarball, what it depends on, and that its pages lead somewhere."""
from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import PurePosixPath
from typing import Any, Dict, Iterator, List, Set, Tuple

import pytest
import yaml
from workspace import NOT_CONTENT, REPOSITORY, source_files

GALAXY: Dict[str, Any] = yaml.safe_load((REPOSITORY / "galaxy.yml").read_text())
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
OURS = re.compile(re.escape(GALAXY["repository"]) + r"/(?:blob|tree)/main/([^#\s]*)")
# Words of the people who make the collection: the pages are for those who run it.
HOUSE_WORDS = re.compile(r"\b(?:rooms?|doors?|houses?)\b", re.IGNORECASE)


def shipped() -> Set[str]:
    """Files of the tarball, by the rule of ansible-galaxy: a directory that matches is left out with all it holds."""
    def ignored(name: str) -> bool:
        path = PurePosixPath(name)
        return any(fnmatch(str(part), pattern) for part in (path, *path.parents) for pattern in GALAXY["build_ignore"])

    return {name for name in source_files() if not ignored(name)}


SHIPPED = shipped()
PAGES: List[str] = sorted(name for name in SHIPPED if name.endswith(".md"))


def links() -> Iterator[Tuple[str, str]]:
    for page in PAGES:
        for link in LINK.findall((REPOSITORY / page).read_text()):
            yield page, link


def anchors(page: str) -> Set[str]:
    """The headings of a page, as GitHub makes anchors of them."""
    headings = HEADING.findall((REPOSITORY / page).read_text())
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_tarball_holds_what_the_gates_look_at() -> None:
    assert [name for name in sorted(SHIPPED) if name.startswith(NOT_CONTENT)] == []
    assert {"README.md", "CHANGELOG.rst", "inventories/static/hosts.yml", "molecule/default/molecule.yml"} <= SHIPPED


@pytest.mark.parametrize("page, link", sorted(set(links())))
def test_links_lead_to_a_file_of_the_tarball_or_to_a_whole_address(page: str, link: str) -> None:
    if link.startswith(("https://", "http://")):
        ours = OURS.match(link)
        assert ours is None or (REPOSITORY / ours.group(1)).exists()
        return
    name, _hash, anchor = link.partition("#")
    parts: List[str] = []
    for part in (*PurePosixPath(page).parent.parts, *PurePosixPath(name).parts) if name else PurePosixPath(page).parts:
        parts = parts[:-1] if part == ".." else [*parts, part]
    target = "/".join(parts)
    assert target in SHIPPED or any(each.startswith(target + "/") for each in SHIPPED)
    assert not anchor or anchor in anchors(target)


@pytest.mark.parametrize("page", PAGES)
def test_pages_use_no_words_of_the_house(page: str) -> None:
    assert HOUSE_WORDS.findall((REPOSITORY / page).read_text()) == []


@pytest.mark.parametrize("name", sorted(GALAXY["dependencies"]))
def test_every_dependency_is_used(name: str) -> None:
    content = [path for path in SHIPPED if path.startswith(("plugins/", "roles/", "playbooks/"))]
    users = [path for path in content if re.search(r"\b%s\.\w" % re.escape(name), (REPOSITORY / path).read_text())]
    assert users


def test_the_changelog_has_the_release_that_is_built() -> None:
    released = yaml.safe_load((REPOSITORY / "changelogs" / "changelog.yaml").read_text())["releases"]
    assert GALAXY["version"] in released
    assert "v%s" % GALAXY["version"] in (REPOSITORY / "CHANGELOG.rst").read_text()
