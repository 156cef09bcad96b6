#!/usr/bin/env python3
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One way of inventory.py, in a process of its own: reads the nodes, and writes in one line of JSON what it cost.

list KUBECONFIG: pages of the API server, each parsed and forgotten. inventory FILE cold|warm: Ansible, with that
configuration of the plugin; cold reads the nodes and writes the cache. memory FILE: what is allocated meanwhile.
"""
from __future__ import annotations

import gc
import json
import os
import sys
import time
from typing import Any, Callable, Dict

PAGE = 500


def read_list(kubeconfig: str) -> Dict[str, Any]:
    """The least that a reader of nodes must do."""
    import urllib3

    with open(kubeconfig, encoding="utf-8") as handle:
        there = json.load(handle)
    pool = urllib3.PoolManager(ca_certs=there["ca"], cert_file=there["certificate"], key_file=there["key"])
    began, nodes, following = time.perf_counter(), 0, ""
    while True:
        url = "%s/api/v1/nodes?limit=%d%s" % (there["server"], PAGE, following and "&continue=" + following)
        page = json.loads(pool.request("GET", url).data)
        nodes += len(page["items"])
        following = page["metadata"].get("continue", "")
        if not following:
            return {"nodes": nodes, "inside": time.perf_counter() - began}


def read_inventory(source: str, state: str) -> Dict[str, Any]:
    """inside: what Ansible takes to read the file by the plugin, its cache included; not what it does afterwards with
    any inventory, as to look for variables of each host in files beside it."""
    manager = _ansible()()
    began = time.perf_counter()
    manager.parse_source(source, cache=state == "warm")
    inside = time.perf_counter() - began
    return {"nodes": len(manager.hosts), "groups": len(manager.groups), "inside": inside}


def read_memory(source: str) -> Dict[str, Any]:
    """peak: the most that was allocated, less what there was before; kept: what stays of the hosts' variables, once
    parsed from JSON in one piece, in MiB each."""
    import tracemalloc

    made = _ansible()
    empty = source + ".empty.gpu_nodes.yml"
    with open(source, encoding="utf-8") as handle:
        options = json.load(handle)
    with open(empty, "w", encoding="utf-8") as handle:
        json.dump({**options, "label_selector": "example.com/none", "cache": False}, handle)
    # All that is imported and kept for any inventory is there before
    made().parse_source(empty, cache=False)
    manager = made()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    manager.parse_source(source, cache=False)
    after, peak = tracemalloc.get_traced_memory()
    text = json.dumps({name: host.vars for name, host in manager.hosts.items()})
    del manager
    gc.collect()
    before_parsing = tracemalloc.get_traced_memory()[0]
    parsed = json.loads(text)
    kept = tracemalloc.get_traced_memory()[0] - before_parsing
    return {"nodes": len(parsed), "inside": 0.0, "peak": _mib(peak - before), "held": _mib(after - before),
            "kept": _mib(kept)}


def _mib(size: int) -> float:
    return round(size / 2 ** 20, 1)


def _ansible() -> Callable[[], Any]:
    """Makes an empty inventory of Ansible's, all of whose plugins are found where the environment says."""
    from ansible.inventory.manager import InventoryManager
    from ansible.parsing.dataloader import DataLoader
    from ansible.plugins.loader import init_plugin_loader

    init_plugin_loader()
    return lambda: InventoryManager(DataLoader(), parse=False)


if __name__ == "__main__":
    os.environ.setdefault("ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED", "true")
    WAYS = {"list": read_list, "inventory": read_inventory, "memory": read_memory}
    print(json.dumps(WAYS[sys.argv[1]](*sys.argv[2:])))
