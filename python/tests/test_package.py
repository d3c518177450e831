"""The package without PyTorch and without a GPU."""

import os
import pytest

import weirpool


def test_import_loads_no_other_library(python):
    code = "import sys, weirpool; assert not {'torch', 'numpy', 'cupy'} & set(sys.modules), sys.modules"
    assert python("-c", code).returncode == 0


def test_figures_are_zero_without_a_pool():
    assert set(weirpool.statistics(0).values()) == {0}
    assert weirpool.statistics(-1) == weirpool.statistics(100) == weirpool.statistics()


@pytest.mark.parametrize("setting", [{"capacity": "much"}, {"remapping": 2.0}, {"sealing": "never"}, {"timeout": -1}])
def test_invalid_setting_is_refused_by_its_value(setting):
    [(name, value)] = setting.items()
    with pytest.raises(ValueError, match=f"^{name}"):
        weirpool.configure(**setting)


def test_settings_accept_numbers_and_texts():
    weirpool.configure(capacity=1 << 30, remapping=0.02, sealing="4MiB", timeout=0.25)
    weirpool.configure(capacity="6GiB", remapping="never", sealing="on-demand", timeout=5)


def test_runner_runs_a_script_with_its_arguments(python, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys; print(__name__, sys.argv[1:])")
    done = python("-m", "weirpool", str(script), "--flag", "value")
    assert done.stdout.strip() == "__main__ ['--flag', 'value']", done.stderr


@pytest.mark.parametrize("arguments, reason", [(["absent.py"], "no file absent.py"), (["-m"], "name of a module"), ([], "name a script"), (["-c", "1"], "no option -c")])
def test_runner_says_what_is_wrong_with_its_arguments(python, arguments, reason):
    done = python("-m", "weirpool", *arguments)
    assert done.returncode == 2 and reason in done.stderr.splitlines()[0], done.stderr


def test_runner_reaches_the_processes_that_a_program_starts(python, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import subprocess, sys; subprocess.run([sys.executable, '-c', 'import sys; print([type(f).__module__ for f in sys.meta_path][0])'])")
    assert python("-m", "weirpool", str(script)).stdout.strip() == "weirpool._hook"
    assert "weirpool" not in python("-m", "weirpool", str(script), WEIRPOOL="0").stdout


def test_runner_waits_for_the_import_that_succeeds(python, tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("import os\nif os.environ.pop('BROKEN', None): raise ImportError('for now')\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import importlib.util, sys, threading\n"
        "from weirpool import torch as on_torch\n"
        "on_torch.use = lambda: print('used')\n"
        "find = lambda: importlib.util.find_spec('torch')\n"
        "threads = [threading.Thread(target=find) for _ in range(8)]\n"
        "[thread.start() for thread in threads]; [thread.join() for thread in threads]\n"
        "try:\n    import torch\nexcept ImportError:\n    print('failed')\n"
        "import torch; import torch\n"
        "print(len([finder for finder in sys.meta_path if 'weirpool' in type(finder).__module__]))\n"
    )
    done = python("-m", "weirpool", str(script), BROKEN="1")
    assert done.stdout.split() == ["failed", "used", "0"], done.stderr


def test_process_ends_cleanly_after_a_wait(python):
    code = (
        "import asyncio, weirpool\npool = weirpool.Pool.simulated('64MiB')\n"
        "async def main():\n    async with pool.reserve('1MiB'): pass\nasyncio.run(main())"
    )
    for _ in range(20):
        done = python("-c", code)
        assert done.returncode == 0, done.stderr


def test_other_interpreters_are_refused(python):
    code = (
        "try:\n    import _interpreters as interpreters\n"
        "except ImportError:\n    import _xxsubinterpreters as interpreters\n"
        "one = interpreters.create()\n"
        "try:\n    failed = interpreters.run_string(one, 'import weirpool')\n"
        "except Exception as error:\n    failed = error\n"
        "print(failed)"
    )
    done = python("-c", code)
    assert "main interpreter" in done.stdout or "subinterpreters" in done.stdout, done.stdout + done.stderr


def test_runner_keeps_another_sitecustomize(python, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('the other one')")
    script = tmp_path / "script.py"
    script.write_text("import subprocess, sys; subprocess.run([sys.executable, '-c', 'pass'])")
    # The package itself may be found by this variable.
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = python("-m", "weirpool", str(script), PYTHONPATH=os.pathsep.join(paths))
    # Once in the first process, and once in the second.
    assert done.stdout.split("\n").count("the other one") == 2
