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


def test_runner_keeps_another_sitecustomize(python, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('the other one')")
    script = tmp_path / "script.py"
    script.write_text("import subprocess, sys; subprocess.run([sys.executable, '-c', 'pass'])")
    # The package itself may be found by this variable.
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = python("-m", "weirpool", str(script), PYTHONPATH=os.pathsep.join(paths))
    # Once in the first process, and once in the second.
    assert done.stdout.split("\n").count("the other one") == 2
