# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Every refusal has a code of its own that says whose it is, is on the page, and names options that there are."""
from __future__ import annotations

import ast
import re
from collections import Counter
from typing import Any, Dict, List, Set

import documentation
import pytest
import refusals
from refusals import PLUGINS, VALUE, Site, pattern

from ansible_collections.gpuops.nvidia.plugins.module_utils.registry import CAPABILITIES

SITES = refusals.sites()
CODED = [site for site in SITES if site.code]
CODE = re.compile(r"[a-z]+\.[a-z][a-z0-9]*(_[a-z0-9]+)*")
# Whose refusals the files of a directory make; others make those of their own name
AREAS = {"core": {"host", "approval"}, "hardware": {"host", "reset"}, "fleet": {"approval"}, "registry.py": {"plan"},
         "shipped.py": {"host"},
         "action": {"cluster", "plan", "validation"}, "inventory": {"inventory"},
         "roles": {"cluster", "activation", "driver", "imex", "mig"}, "playbooks": {"playbook"},
         "plugin_utils": {"approval", "cluster", "host", "inventory", "packages", "validation", "variables"}}
OF_CONTROLLER = {"approval", "cluster", "host", "inventory", "packages", "plan", "playbook", "validation"}


def options() -> Dict[str, Set[str]]:
    """{capability: names of its options}, and under '' those of every module and plugin."""
    known: Dict[str, Set[str]] = {each.name: set(each.arguments) for each in CAPABILITIES}
    documents: List[Dict[str, Any]] = [
        documentation.documentation_blocks(path).get("DOCUMENTATION", {})
        for kind in ("modules", "inventory") for path in (PLUGINS / kind).glob("*.py")]
    fragments = [text for path in (PLUGINS / "doc_fragments").glob("*.py")
                 for text in re.findall(r"^  (\w+):$", path.read_text(), re.MULTILINE)]
    known[""] = {name for document in documents for name in document.get("options", {})} | set(fragments)
    return known


OPTIONS = options()


def named(site: Site) -> str:
    return site.code or "%s:%d" % (site.path, site.line)


def test_there_are_refusals_in_every_part() -> None:
    """What is looked for is found: the tests below would pass on nothing."""
    assert len(CODED) > 100
    assert {site.code.partition(".")[0] for site in CODED} >= OF_CONTROLLER | {
        capability.name for capability in CAPABILITIES if capability.name != "nouveau"}


def test_each_has_a_code_where_it_is_made() -> None:
    assert [named(site) for site in SITES if not site.code] == []


def test_nothing_else_is_written_in_the_form_of_a_refusal() -> None:
    """It would have no code, and be missing on the page. A variable with a slip in its name is a warning."""
    written = {path.relative_to(PLUGINS).as_posix() for path in PLUGINS.rglob("*.py")
               for node in ast.walk(ast.parse(path.read_text()))
               if isinstance(node, ast.Constant) and str(node.value).startswith("Found: ")}
    assert written == {"module_utils/core/refusal.py", "module_utils/shipped.py", "plugin_utils/capability_action.py"}


def test_no_two_share_a_code() -> None:
    assert [code for code, number in Counter(site.code for site in CODED).items() if number > 1] == []


@pytest.mark.parametrize("site", CODED, ids=named)
def test_a_code_says_whose_it_is(site: Site) -> None:
    assert CODE.fullmatch(site.code)
    parts = site.path.split("/")
    package = parts[1] if parts[0] == "module_utils" else parts[0]
    assert site.code.partition(".")[0] in AREAS.get(package, {package})


@pytest.mark.parametrize("site", CODED, ids=named)
def test_it_says_what_is_there_what_was_asked_for_and_what_to_do(site: Site) -> None:
    assert site.found and site.wanted and site.remedy


@pytest.mark.parametrize("site", [site for site in CODED if site.option and VALUE not in site.option], ids=named)
def test_the_option_is_there_and_the_reader_is_told_of_it(site: Site) -> None:
    area = site.code.partition(".")[0]
    for option in site.option.split(" / "):
        assert option in OPTIONS[area if area in OPTIONS else ""]
        assert "`%s`" % option in site.found + site.remedy


@pytest.mark.parametrize("site", [site for site in CODED if site.code.partition(".")[0] in OPTIONS], ids=named)
def test_options_stand_in_backticks(site: Site) -> None:
    """So that the reader is shown the variable that he has set. Names that are words too may stand as words."""
    told = set(re.findall(r"(?<![\w`./=-])[a-z]+(?:_[a-z]+)+(?![\w`./=-])", site.found + " " + site.remedy))
    assert told & OPTIONS[site.code.partition(".")[0]] == set()


def test_only_the_form_itself_makes_the_keys_of_a_result() -> None:
    makers = {path.relative_to(PLUGINS).as_posix() for path in PLUGINS.rglob("*.py")
              for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Dict)
              if {"found", "wanted", "remedy"} <= {getattr(key, "value", "") for key in node.keys}}
    # The second one can import nothing
    assert makers == {"module_utils/core/refusal.py", "module_utils/shipped.py"}


@pytest.mark.parametrize("code, expected", [
    ("'a %s of %d %%' % (x, y)", "a … of … …"),
    ("'a' + named + 'b'", "a…b"),
    ("KNOWN % 7", "known …"),
    ("'a' if x else 'b'", "a / b"),
    ("'a' if x else ''", "a"),
    ("f(x) or 'b'", "…"),
    ("LOOP", "…x"),
    ("'{path} cannot be {tried}'", "… cannot be …"),
])
def test_what_is_written_down_is_shown_and_values_are_dots(code: str, expected: str) -> None:
    constants = {"KNOWN": ast.parse("'known %d'", mode="eval").body, "LOOP": ast.parse("LOOP + 'x'", mode="eval").body}
    assert pattern(ast.parse(code, mode="eval").body, constants) == expected


def test_every_code_of_the_source_is_on_the_page() -> None:
    """Found in another way than the page finds them: as words between quotation marks."""
    areas = {site.code.partition(".")[0] for site in CODED}
    written = {word for path in PLUGINS.rglob("*.py") if "/modules/" not in str(path)
               for word in re.findall(r'^\s*"([a-z]+\.[a-z_]+)",|(?:Refusal|Error|Failed)\("([a-z]+\.[a-z_]+)"',
                                      path.read_text(), re.MULTILINE) for word in word
               if word.partition(".")[0] in areas}
    headings = set(re.findall(r"^### (.*)$", refusals.page(), re.MULTILINE))
    assert written - headings == set() and len(written) > 100
