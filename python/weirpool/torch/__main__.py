"""Checks on this machine's GPUs that PyTorch works on memory from weirpool as on its own allocator.

    python -m weirpool.torch --selftest [--only PART]

Prints a row for each check: `ok`, `FAIL` with the reason, `known` for a failure that is known, or `-` with the reason why it did not run. The exit
code is 0 if no row failed, 1 if one did, and 3 if PyTorch or a GPU is missing.
"""

import argparse
import importlib.util
import sys
import time
import traceback

MISSING = 3


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


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m weirpool.torch", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--selftest", action="store_true", help="run the checks")
    parser.add_argument("--only", help="run only checks whose name contains this text")
    parser.add_argument("--traceback", action="store_true", help="print where a check failed")
    options = parser.parse_args(arguments)
    if not options.selftest:
        parser.print_help()
        return 2
    reason = missing()
    if reason is not None:
        print(f"not run: {reason}")
        return MISSING
    import torch

    import weirpool
    import weirpool.torch

    weirpool.torch.use()
    from ._checks import CHECKS, Known, NotRun

    print(f"weirpool {weirpool.__version__}, PyTorch {torch.__version__}, {torch.cuda.device_count()} x {torch.cuda.get_device_name()}, class: {weirpool.torch.is_used()}")
    failed = 0
    for check in CHECKS:
        name = check.__doc__.strip()
        if options.only and options.only not in name:
            continue
        start = time.perf_counter()
        try:
            outcome, words = "ok", check()
            torch.cuda.synchronize()
        except NotRun as error:
            outcome, words = "-", str(error)
        except Known as error:
            outcome, words = "known", str(error)
        except Exception as error:
            outcome, words = "FAIL", f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            failed += 1
            if options.traceback:
                traceback.print_exc()
        print(f"{outcome:6}{name:62}{time.perf_counter() - start:6.2f} s  {str(words or '')[:170]}", flush=True)
    print(f"{failed} failed" if failed else "all checks passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
