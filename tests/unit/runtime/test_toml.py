# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Files of containerd made at random: what goes in comes out again, and nothing of the user's is lost."""
from __future__ import annotations

from typing import Dict, List

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime import toml
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.backends.containerd import writer

CRI = 'plugins."io.containerd.grpc.v1.cri"'
SECTION: toml.Path = ("plugins", "io.containerd.grpc.v1.cri")
RUNTIMES = SECTION + ("containerd", "runtimes")
TABLES: Dict[toml.Path, Dict[str, object]] = {
    (): {"imports": ["/a/*.toml", "/etc/containerd/conf.d/99-gpuops-*.toml"]},
    SECTION: {"enable_cdi": True},
    SECTION + ("containerd",): {"default_runtime_name": "nvidia"},
    RUNTIMES + ("nvidia",): {"runtime_type": "io.containerd.runc.v2"},
    RUNTIMES + ("nvidia", "options"): {"BinaryName": "/usr/bin/nvidia-container-runtime", "SystemdCgroup": True},
}

comments = st.sampled_from(["", "", " # why", "   #x = [", ' # "quoted" text', "\t# tab"])
indents = st.sampled_from(["", "  ", "    ", "\t"])
blanks = st.sampled_from([
    "", "", "\n", "\n\n", "# a comment of its own\n", "    # [not.a.table]\n", "# imports = []\n",
])
top_keys = st.sampled_from([
    'root = "/var/lib/containerd"', "oom_score = -999", "imports = []", 'imports = ["/a/*.toml"]',
    "imports = [ # first\n  '/a/*.toml',  # second\n]", "required_plugins = []", 'temp = """\nimports = [\n"""',
])
cri_keys = st.sampled_from([
    'sandbox_image = "registry.k8s.io/pause:3.10"', "enable_cdi = false", "enable_cdi = true # site",
    "cdi_spec_dirs = ['/etc/cdi']", "enable_selinux = false",
])
tables = st.lists(
    st.sampled_from([
        ("[%s.containerd]" % CRI, ['snapshotter = "overlayfs"', 'default_runtime_name = "runc"  # keep']),
        ("[%s.containerd.runtimes.runc]" % CRI, ['runtime_type = "io.containerd.runc.v2"']),
        ("[%s.containerd.runtimes.runc.options]" % CRI, ["SystemdCgroup = true"]),
        ('[%s.registry.configs."r.example".auth]' % CRI, ['password = "s3cret"']),
        ("[plugins.'io.containerd.internal.v1.opt']", ["path = '/opt/containerd'"]),
        ("[debug]", ['level = "info"']),
        ("[proxy_plugins.stargz]", ['type = "snapshot"']),
    ]),
    unique_by=lambda table: table[0],
)


@st.composite
def files(draw: st.DrawFn) -> str:
    """A root file of format version 2, with comments in odd places, perhaps without an end to its last line, perhaps
    with lines that end as Windows ends them."""
    lines: List[str] = [draw(blanks), "version = 2" + draw(comments) + "\n"]
    top = draw(st.lists(top_keys, unique_by=lambda key: key.split("=")[0]))
    for key in top:
        lines.append(draw(blanks) + key + draw(comments) + "\n")
    blocks = draw(tables)
    if draw(st.booleans()):
        keys = draw(st.lists(cri_keys, unique_by=lambda key: key.split("=")[0]))
        blocks.insert(0, ("[%s]" % CRI, keys))
    for header, keys in blocks:
        indent = draw(indents)
        lines.append(draw(blanks) + indent + header + draw(comments) + "\n")
        lines.extend(draw(blanks) + indent + "  " + key + draw(comments) + "\n" for key in keys)
    text = "".join(lines)
    text = text[:-1] if draw(st.booleans()) else text
    return text.replace("\n", "\r\n") if draw(st.booleans()) else text


def comments_of(text: str) -> List[str]:
    """Comment lines that are not ours, the kept former lines seen as what they were."""
    shown = [line[len(toml.FORMER):] if line.startswith(toml.FORMER) else line for line in text.split("\n")]
    return [line.split("#", 1)[1].rstrip("\r") for line in shown if "#" in line and "gpuops.nvidia" not in line]


@settings(max_examples=60, deadline=None)
@given(files())
def test_applied_and_removed_gives_the_bytes_back(text: str) -> None:
    changed = writer.apply_tables(text, TABLES, "config.toml")
    assert changed != text
    assert toml.without_ours(changed) == text
    assert changed.count("\r") == (changed.count("\n") if "\r" in text else 0)


@settings(max_examples=60, deadline=None)
@given(files())
def test_applied_twice_equals_applied_once(text: str) -> None:
    once = writer.apply_tables(text, TABLES, "config.toml")
    assert writer.apply_tables(once, TABLES, "config.toml") == once


@settings(max_examples=60, deadline=None)
@given(files())
def test_no_comment_and_no_setting_is_lost(text: str) -> None:
    changed = writer.apply_tables(text, TABLES, "config.toml")
    assert [line for line in comments_of(text) if line not in comments_of(changed)] == []
    wanted = toml.parse("", text)
    for table, values in TABLES.items():
        inner = wanted
        for part in table:
            inner = inner.setdefault(part, {})
        inner.update(values)
    assert toml.parse("", changed) == wanted


@settings(max_examples=60, deadline=None)
@given(files())
def test_a_plan_shows_our_lines_and_no_secret(text: str) -> None:
    changed = writer.apply_tables(text, TABLES, "config.toml")
    assert "s3cret" not in toml.our_lines(changed)
    assert 'BinaryName = "/usr/bin/nvidia-container-runtime"' in toml.our_lines(changed)


@settings(max_examples=60, deadline=None)
@given(files(), st.integers(min_value=0, max_value=10))
def test_another_hand_in_our_lines_is_seen(text: str, position: int) -> None:
    changed = writer.apply_tables(text, TABLES, "config.toml")
    edited = changed.replace("/usr/bin/nvidia-container-runtime", "/opt/other", 1)
    assert writer.apply_tables(edited, TABLES, "config.toml") == changed


def test_statements_see_through_strings_and_arrays() -> None:
    text = 'a = """\n[not]\nb = 1\n"""\nc = [ # ]\n  "]", \'"\',\n]\n[t."x.y"] # z\nd.e = { f = "}" }\n[[u]]\ng = 1\n'
    found = [(each.path, each.table, each.first, each.last) for each in toml.statements(text)]
    assert found == [
        (("a",), False, 0, 3),
        (("c",), False, 4, 6),
        (("t", "x.y"), True, 7, 7),
        (("t", "x.y", "d", "e"), False, 8, 8),
        (("u",), True, 9, 9),
        (("u", "g"), False, 10, 10),
    ]


@pytest.mark.parametrize(("text", "line", "word"), [
    ("version = 2\n[plugins\n", 2, ""),
    ("version = 2\n\n[a]\nb = \n", 4, ""),
    ("version = 2\nb = [1,\n  2,\n  x\n]\n", 4, ""),
    ("version = 2\nnot a statement\n", 2, ""),
    ("a = 1\nb = 2\na = 3\n", 3, "twice"),
    ("[a]\n[b]\n[a]\n", 3, "twice"),
    ("a = { b = 1 }\n[a.c]\n", 2, "inline table"),
    ("a = 1\n[a.c]\n", 2, "no table"),
    ("a = '''\nnever closed\n", 1, ""),
    ("{{ template \"base\" . }}\n", 1, "Go template"),
    ("version = 2\n# {{ no }}\n[a]\n{{- if .B }}\nb = 1\n", 4, "'{{- if .B }}' belongs to a Go template"),
    ("# {{ a comment }}\nversion =\n", 2, "is not complete"),
    ("version = 2\r\nb =\r\n", 2, ""),
    ("a = 1\rb = 2\n", 1, ""),
])
def test_a_broken_file_is_named_with_its_line(text: str, line: int, word: str) -> None:
    with pytest.raises(GpuOpsError) as caught:
        toml.parse("/etc/x.toml", text)
    assert caught.value.details["line"] >= line
    assert caught.value.details["line"] <= line + text[text.index("\n"):].count("'''") + 1
    assert word in caught.value.found


def test_tables_in_any_order_and_several_of_a_name() -> None:
    text = "[a.b.c]\nd = 1\n[a.b]\ne.f = 'x'\n[[g]]\nh = 1\n[g.i]\nj = 2\n[[g]]\n[g.i]\nj = 3\n"
    assert toml.parse("", text) == {
        "a": {"b": {"c": {"d": 1}, "e": {"f": "x"}}},
        "g": [{"h": 1, "i": {"j": 2}}, {"i": {"j": 3}}],
    }


@settings(max_examples=60, deadline=None)
@given(files(), st.sampled_from(["# seen\n", "[late]\nkey = 1\n", "\n"]))
def test_what_somebody_writes_behind_our_lines_moves_nothing_and_stays(text: str, behind: str) -> None:
    changed = writer.apply_tables(text, TABLES, "config.toml") + behind
    assert writer.apply_tables(changed, TABLES, "config.toml") == changed
    bare = toml.without_ours(changed)
    end = "\r\n" if "\r" in text else "\n"
    assert bare == (text if text.endswith("\n") else text + end) + behind
    toml.parse("config.toml", bare)


def test_lines_that_end_differently_keep_their_ends() -> None:
    text = "version = 2\r\n[%s]\n  enable_cdi = false\r\n[debug]\nlevel = 'info'" % CRI
    changed = writer.apply_tables(text, TABLES, "config.toml")
    assert toml.without_ours(changed) == text
    assert toml.parse("", changed)["plugins"][SECTION[1]]["enable_cdi"] is True


@pytest.mark.parametrize(("path", "line"), [
    (("version",), 2), (("plugins", "a", "b"), 5), (("plugins", "a"), 4), (("plugins", "a", "none"), 4),
    (("plugins",), 4), (("none",), 1),
])
def test_the_line_of_a_table_or_key(path: toml.Path, line: int) -> None:
    assert toml.line_of("# first\nversion = 2\n\n[plugins.a]\nb = 1\n[plugins.a.c]\nd = 1\n", path) == line
