# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Packages of the host: what is there, what a repository has, what a transaction would do, and what it did.

Words
  Package      a line of the package database: name, architecture, version, what is wanted of it, its state.
               Installed, half-installed, held and "only its configuration is left" are different things; one reader
               tells them (apt/database.py), and nobody else asks dpkg.
  Repository   where packages come from, with the one key that may sign it, and credentials that are no part of its URL.
  Index        what repositories offer, read into a directory of ours (apt/index.py); the host's lists stay as they are.
  Simulation   what the package manager says a transaction would do, under the very options that it will have.
  Request      the names and versions that the package manager is asked for; a transaction brings more than that.
  Ours         what a transaction of ours was simulated to bring and then brought (provenance.py), nothing else.

Order of a change: read the index, simulate, show the step (every package of the simulation), fetch, let the
controller's ansible.builtin carry the request out (apt/transaction.py), account for what came.

Never touched: the host's own sources, keys, preferences and credentials; holds of others (a policy that needs another
version of a held package is refused); packages that came by anybody else.

apt is the one backend now. dnf and zypper get folders beside it with the same questions: installed (database.py),
offered and simulate (index.py), compare (versions.py), transaction (transaction.py).
"""
