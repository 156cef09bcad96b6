# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Hosts whose variables are written alike are worked out once; hosts of one cluster that differ are named."""
from __future__ import annotations

import time
from typing import Any, Dict, List, Mapping, Tuple

import pytest

from ansible_collections.gpuops.nvidia.plugins.plugin_utils.agreement import Opinion, disagreement, written_alike


def groups(hosts: Mapping[str, Mapping[str, Any]], defaults: Any = None, names: Any = ("x",)) -> List[Tuple[str, ...]]:
    return written_alike({name: {"inventory_hostname": name, **own} for name, own in hosts.items()}, names,
                         defaults or {})


@pytest.mark.parametrize("value", [
    "plain", {"deep": ["{{ site }}"]}, "{{ site | default(omit) }}", "{{ lookup('ansible.builtin.env', 'HOME') }}",
    "{{ groups.all | length }}", "{% if site %}{{ site }}{% endif %}", "{% set n = 1 %}{{ n }}",
    "{{ hostvars['gpu-1'].x }}", "{{ undefined_anywhere | default(1) }}"])
def test_what_is_written_alike_is_one_group(value: Any) -> None:
    assert groups({"a": {"x": value, "site": 1, "y": 1}, "b": {"x": value, "site": 1, "y": 2}}) == [("a", "b")]


@pytest.mark.parametrize("value", [
    "{{ site }}", {"deep": [{"{{ site }}": 1}]}, "{{ middle }}", "{{ inventory_hostname }}",
    "{{ hostvars[inventory_hostname].y }}", "{{ lookup('vars', 'si' + 'te') }}", "{{ vars['site'] }}",
    "{{ query('ansible.builtin.template', 'x.j2') }}", "{{ not to be read",
    "{{ site | combine({}) }}", "{{ [] | map('extract', site) }}",
    "{{ 'x' is match(site) }}", "{{ site | ansible.builtin.to_json }}", "{% set site = site | int %}{{ site }}",
    "{% for i in site %}{{ i }}{% endfor %}"])
def test_what_may_come_to_something_else_is_not(value: Any) -> None:
    hosts = {"a": {"x": value, "site": 1, "middle": "{{ site }}"}, "b": {"x": value, "site": 2, "middle": "{{ site }}"}}
    assert groups(hosts) == [("a",), ("b",)]


def test_a_default_of_the_role_counts_where_a_host_says_nothing() -> None:
    defaults = {"x": "{{ all_of_it | default('a') }}"}
    assert groups({"a": {}, "b": {"x": "{{ all_of_it | default('a') }}"}, "c": {"all_of_it": 1}}, defaults) == [
        ("a", "b"), ("c",)]


def test_two_templates_that_name_each_other_are_an_end() -> None:
    assert groups({"a": {"x": "{{ y }}", "y": "{{ x }}"}, "b": {"x": "{{ y }}", "y": "{{ x }}"}}) == [("a", "b")]


def test_five_hundred_hosts_take_no_time() -> None:
    shared: Dict[str, Any] = {"x%d" % number: {"deep": ["{{ site }}"] * 5} for number in range(40)}
    hosts = {"gpu-%d" % number: {**shared, "site": number % 2, "own": number} for number in range(500)}
    began = time.process_time()
    assert [len(each) for each in groups(hosts, names=tuple(shared))] == [250, 250]
    assert time.process_time() - began < 2


def test_who_agrees_is_not_refused() -> None:
    assert disagreement("c", "x", [Opinion({"a": 1}, ("a",)), Opinion({"a": 1}, ("b",))]) is None


def test_values_and_hosts_are_told_most_of_them_first_and_not_at_length() -> None:
    many = tuple("gpu-%02d" % number for number in range(12))
    refusal = disagreement("c", "x", [Opinion("y" * 200, ("a",)), Opinion(None, many)])
    assert refusal is not None and refusal.code == "cluster.hosts_disagree" and refusal.option == "x"
    assert "`x`: nothing on gpu-00, " in refusal.found and "gpu-09 and 2 more; yyy" in refusal.found
    assert refusal.found.endswith("yyy... on a")


@pytest.mark.parametrize("data, text, told", [
    ({}, "{}", "{} on a; text '{}' on b"), ([], "[]", "[] on a; text '[]' on b"),
    ([{"days": 1}], "[{'days': 1}]", """[{"days":1}] on a; text '[{'days': 1}]' on b"""),
    (None, "", "nothing on a; text '' on b"), (None, "nothing", "nothing on a; text 'nothing' on b"),
    (2, "2", "2 on a; text '2' on b"), (True, "true", "true on a; text 'true' on b"), (2, "5%", "2 on a; 5% on b")])
def test_text_that_looks_like_something_else_is_told_to_be_text(data: Any, text: str, told: str) -> None:
    refusal = disagreement("c", "x", [Opinion(data, ("a",)), Opinion(text, ("b",))])
    assert refusal is not None and refusal.found.endswith("`x`: " + told)


def test_a_password_in_an_address_is_not_told() -> None:
    refusal = disagreement("c", "x", [Opinion("https://user:secret@proxy", ("a",)), Opinion("", ("b",))])
    assert refusal is not None and "secret" not in refusal.found


def test_what_was_found_of_all_hosts_is_not_read_anew_for_each() -> None:
    """1000 hosts that follow the result of a task for all of them took minutes."""
    found = {str(number): {"labels": {"label-%d" % each: "true" for each in range(20)}} for number in range(1000)}
    started = time.process_time()
    assert len(groups({name: {"x": "{{ found[inventory_hostname] }}", "found": found} for name in found})) == 1000
    assert time.process_time() - started < 5
