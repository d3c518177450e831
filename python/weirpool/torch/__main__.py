"""Checks on this machine's GPUs that PyTorch works on memory from weirpool as on its own allocator.

    python -m weirpool.torch --selftest [--only PART] [--traceback]

Prints a row for each check: `ok`, `FAIL` with the reason, or `-` with the reason why it did not run. The exit
code is 0 if no row failed, 1 if one did, and 3 if PyTorch or a GPU is missing.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

MISSING = 3
# The most seconds of all checks together.
LONGEST = 600


def missing():
    """Returns why the checks cannot run here, or None."""
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed: pip install torch"
    import torch

    if torch.version.cuda is None:
        return f"PyTorch {torch.__version__} is built without CUDA: install a build with CUDA"
    if torch.cuda.device_count() == 0:
        return f"PyTorch {torch.__version__} finds no GPU"
    return None


def run_checks(options):
    """Runs the checks from a number on, in this process. Notes the number of each in a file before it runs."""
    import torch

    import weirpool
    import weirpool.torch

    weirpool.torch.use()
    from ._checks import CHECKS, NotRun

    if options.first == 0:
        gpus = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
        print(f"weirpool {weirpool.__version__}, PyTorch {torch.__version__}, {gpus}, allocator: {weirpool.torch.is_used()}", flush=True)
    failed = 0
    for number, check in list(enumerate(CHECKS))[options.first :]:
        name = check.__doc__.strip()
        if options.only and options.only not in name:
            continue
        Path(options.progress).write_text(json.dumps([number, name]))
        start = time.perf_counter()
        try:
            outcome, words = "ok", check()
            torch.cuda.synchronize()
        except NotRun as error:
            outcome, words = "-", str(error)
        except Exception as error:
            outcome, words = "FAIL", f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            failed += 1
            if options.traceback:
                traceback.print_exc()
        print(row(outcome, name, time.perf_counter() - start, words), flush=True)
    Path(options.progress).write_text(json.dumps([None, None]))
    return 1 if failed else 0


def row(outcome, name, seconds, words):
    return f"{outcome:6}{name:66}{seconds:6.2f} s  {str(words or '')[:170]}"


def supervise(options):
    """Runs the checks in another process, and the rest in a further one if a check ends it."""
    is_well, first = True, 0
    with tempfile.TemporaryDirectory() as folder:
        progress = Path(folder) / "progress"
        while True:
            command = [sys.executable, "-m", "weirpool.torch", "--selftest", "--first", str(first), "--progress", str(progress)]
            command += ["--only", options.only] if options.only else []
            command += ["--traceback"] if options.traceback else []
            progress.write_text(json.dumps([first, "PyTorch starts on weirpool"]))
            try:
                code = subprocess.run(command, timeout=LONGEST).returncode
            except subprocess.TimeoutExpired:
                code = f"nothing after {LONGEST} s"
            is_well &= code == 0
            number, name = json.loads(progress.read_text())
            if number is None:
                break
            print(row("FAIL", name, 0, f"the process ended with {code}"), flush=True)
            first = number + 1
            if name == "PyTorch starts on weirpool":
                break
    print("all checks passed" if is_well else "some checks failed")
    return 0 if is_well else 1


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m weirpool.torch", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--selftest", action="store_true", help="run the checks")
    parser.add_argument("--only", help="run only checks whose name contains this text")
    parser.add_argument("--traceback", action="store_true", help="print where a check failed")
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--progress", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if not options.selftest:
        parser.print_help()
        return 2
    if options.progress:
        return run_checks(options)
    reason = missing()
    if reason is not None:
        print(f"not run: {reason}")
        return MISSING
    return supervise(options)


if __name__ == "__main__":
    sys.exit(main())
