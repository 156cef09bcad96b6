# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Expressions of an inventory, worked out once for all hosts that are alike in them: the same answers as ever."""
from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Set, Tuple

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.gpuops.nvidia.plugins.plugin_utils import remembering
from ansible_collections.gpuops.nvidia.plugins.plugin_utils.remembering import RememberingTemplar, read_by

HOST: Dict[str, Any] = {"name": "gpu-1", "zone": "eu-1", "count": 8, "ready": True, "clique": None,
                        "labels": {"a.b/c": "x", "d": "y"}, "findings": [], "addresses": {"InternalIP": ["192.0.2.1"]}}


class Counting:
    """A Templar that counts what it is asked."""

    def __init__(self) -> None:
        self.templar = Templar(DataLoader())
        self.asked: List[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.templar, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "available_variables":
            self.templar.available_variables = value
        else:
            super().__setattr__(name, value)

    def _counted(self, method: str, text: Any) -> Any:
        self.asked.append(text)
        return getattr(self.templar, method)(text)

    def evaluate_expression(self, text: Any) -> Any:
        return self._counted("evaluate_expression", text)

    def evaluate_conditional(self, text: Any) -> Any:
        return self._counted("evaluate_conditional", text)

    def template(self, text: Any) -> Any:
        return self._counted("template", text)


def outcome(ask: Callable[[], Any]) -> Tuple[Any, str]:
    try:
        return ask(), ""
    except Exception as error:
        return None, "%s: %s" % (type(error).__name__, error)


def answers(text: str, hosts: List[Dict[str, Any]], method: str = "evaluate_expression") -> Tuple[List[Any], int]:
    """What each host is told, and how often Ansible was asked."""
    counting = Counting()
    templar = RememberingTemplar(counting)
    found = []
    for host in hosts:
        templar.available_variables = host
        found.append(outcome(lambda: getattr(templar, method)(trust_as_template(text))))
    return found, len(counting.asked)


def as_ever(text: str, hosts: List[Dict[str, Any]], method: str = "evaluate_expression") -> List[Any]:
    templar = Templar(DataLoader())
    found = []
    for host in hosts:
        templar.available_variables = host
        found.append(outcome(lambda: getattr(templar, method)(trust_as_template(text))))
    return found


@pytest.mark.parametrize("text, read", [
    ("zone", {("zone",)}), ("'admin'", set()), ("labels['a.b/c'] | default('none')", {("labels", "a.b/c")}),
    ("mig.strategy == 'mixed' and not findings", {("mig", "strategy"), ("findings",)}),
    ("addresses.InternalIP | first", {("addresses", "InternalIP")}), ("labels[zone]", {("labels",), ("zone",)}),
    ("name.split('-')[0]", {("name",)}), ("count if ready else 0", {("count",), ("ready",)}),
    ("labels.get('d', zone)", {("labels",), ("zone",)}), ("zone ~ '-' ~ name[:3]", {("zone",), ("name",)}),
    ("zone is match('eu')", {("zone",)}), ("findings | community.general.json_query('[].code')", {("findings",)}),
    # What may answer otherwise the next time, or changes what is read
    ("lookup('env', 'X')", None), ("now()", None), ("[1, 2] | random", None), ("labels.pop('d')", None),
    ("zone | somebody.elses.filter", None), ("zone is file", None), ("range(3)", None), ("name ==", None),
])
def test_what_is_read_is_told_by_the_expression(text: str, read: Optional[Set[Any]]) -> None:
    assert read_by("{{ %s }}" % text) == read


@pytest.mark.parametrize("text, asked", [
    ("zone | upper", 2), ("'admin'", 1), ("name | upper", 6), ("name", 0), ("labels", 1),
    ("labels['d'] | default('none')", 1), ("count == 8", 1), ("now() > 1", 6),
    ("nothing.at_all", 1),
])
def test_hosts_that_are_alike_in_it_are_told_the_same(text: str, asked: int) -> None:
    hosts = [dict(HOST, name="gpu-%d" % number, zone="eu-%d" % (number % 2)) for number in range(6)]
    found, count = answers(text, hosts)
    assert found == as_ever(text, hosts) and count == asked


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-1, 2), st.sampled_from(["", "eu", "1", "True", "{{ zone }}"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(["a", "d"]), inner, max_size=2)),
    max_leaves=4)
EXPRESSIONS = (
    "zone", "zone | default('x')", "zone == count", "labels.d", "labels['d'] | default('none', true)",
    "labels | length",
    "findings | length > 0", "not findings", "zone is string", "zone ~ count", "[zone, count]", "{'a': labels}",
    "count + 1", "zone.upper()", "labels.get('d')", "findings | first", "labels[zone]", "zone | int",
    "'x' in labels", "findings[0].a", "zone | ternary(1, 2)", "count in [0, 1]")


@settings(max_examples=25, deadline=None)
@given(st.lists(st.fixed_dictionaries(
    dict.fromkeys(("zone", "count", "labels", "findings", "ready"), VALUES)), min_size=2, max_size=5))
def test_every_expression_comes_to_what_it_came_to_for_each_host_alone(hosts: List[Dict[str, Any]]) -> None:
    for text in EXPRESSIONS:
        for method in ("evaluate_expression", "evaluate_conditional"):
            assert answers(text, hosts, method)[0] == as_ever(text, hosts, method), (text, method)


def test_one_and_true_are_not_the_same() -> None:
    hosts = [dict(HOST, count=value) for value in (1, True, 1.0, "1", [1], "[1]")]
    found, _count = answers("count | string", hosts)
    assert found == as_ever("count | string", hosts)


def test_what_each_host_has_for_itself_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembering, "TRIED", 3)
    templar = RememberingTemplar(Counting())
    for number in range(20):
        templar.available_variables = dict(HOST, name="gpu-%d" % number)
        assert templar.evaluate_expression(trust_as_template("name")) == "gpu-%d" % number
    ((_key, known),) = templar._known.items()
    assert known is not None and len(known._found) < 15


def test_an_answer_that_somebody_changes_is_told_anew_to_the_next() -> None:
    templar = RememberingTemplar(Counting())
    templar.available_variables = HOST
    templar.evaluate_expression(trust_as_template("[zone]")).append("more")
    assert templar.evaluate_expression(trust_as_template("[zone]")) == ["eu-1"]


def test_an_expression_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Templar(DataLoader())
    compiled: List[str] = []
    whole = plain._engine.environment.compile_expression

    def compile_expression(source: str, *arguments: Any, **options: Any) -> Any:
        compiled.append(source)
        return whole(source, *arguments, **options)

    monkeypatch.setattr(plain._engine.environment, "compile_expression", compile_expression)
    templar = RememberingTemplar(plain)
    for number in range(5):
        templar.available_variables = dict(HOST, name="gpu-%d" % number)
        assert templar.evaluate_expression(trust_as_template("name | upper")) == "GPU-%d" % number
    assert compiled == ["name | upper"]


def test_what_is_trusted_by_nobody_is_not_worked_out_as_it_never_was() -> None:
    templar = RememberingTemplar(Templar(DataLoader()))
    templar.available_variables = HOST
    with pytest.raises(Exception, match="trust"):
        templar.evaluate_expression("zone")
