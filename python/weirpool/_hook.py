"""Makes PyTorch allocate from weirpool as soon as a program imports it."""

import importlib.abc
import importlib.util
import sys
import threading


def install():
    """Calls `weirpool.torch.use()` at the end of the first `import torch` that succeeds, or now if it is imported already."""
    if "torch" in sys.modules:
        _use()
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _use():
    from . import torch

    torch.use()


class _Finder(importlib.abc.MetaPathFinder):
    """Stays until PyTorch is imported: a program may first ask whether it is installed, or fail to import it."""

    def __init__(self):
        self.asked = threading.local()

    def find_spec(self, name, path=None, target=None):
        if name != "torch" or getattr(self.asked, "is_inside", False):
            return None
        self.asked.is_inside = True
        try:
            spec = importlib.util.find_spec("torch")
        finally:
            self.asked.is_inside = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader, finder):
        self.loader, self.finder = loader, finder

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        if self.finder in sys.meta_path:
            sys.meta_path.remove(self.finder)
        _use()
