"""Runs an unchanged program on memory from weirpool.

    python -m weirpool script.py [arguments]
    python -m weirpool -m module [arguments]

PyTorch allocates from weirpool from its import on, in this process and in the Python processes that it starts. With `WEIRPOOL=0` in the
environment the program runs on PyTorch's own allocator.
"""

import os
import runpy
import sys
from pathlib import Path

from . import _hook


def _wrong(arguments):
    """Returns what is wrong with the arguments."""
    if not arguments:
        return "name a script, or a module after -m"
    if arguments[0] == "-m":
        return None if len(arguments) > 1 else "-m needs the name of a module"
    if arguments[0].startswith("-"):
        return f"there is no option {arguments[0]}; settings are environment variables, such as WEIRPOOL_CAPACITY"
    return None if Path(arguments[0]).exists() else f"there is no file {arguments[0]}"


def main(arguments):
    if arguments and arguments[0] in ("-h", "--help"):
        print(__doc__.strip())
        return 0
    reason = _wrong(arguments)
    if reason is not None:
        print(f"weirpool: {reason}\n\n{__doc__.strip()}", file=sys.stderr)
        return 2
    if os.environ.setdefault("WEIRPOOL", "1") != "0":
        _hook.install()
        # Python runs the `sitecustomize` of this folder in each process that inherits the environment.
        folder = str(Path(__file__).with_name("_site"))
        others = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, others] if others else [folder])
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[0] = str(Path(arguments[0]).resolve().parent)
        runpy.run_path(arguments[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
