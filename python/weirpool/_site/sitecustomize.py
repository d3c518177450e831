"""Runs in each Python process that `python -m weirpool` starts."""

import importlib.machinery
import importlib.util
import os
import sys

_folder = os.path.dirname(os.path.abspath(__file__))


def _run_other():
    """Runs the `sitecustomize` that this one hides."""
    others = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _folder]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


_run_other()
# Another installation of Python may have no weirpool.
if os.environ.get("WEIRPOOL", "0") != "0" and importlib.util.find_spec("weirpool") is not None:
    from weirpool import _hook

    _hook.install()
