"""What all adapters have in common: nothing is imported or changed unasked, a missing package is named, a Switch puts back."""

import subprocess
import sys
from pathlib import Path

import pytest

import lossd
import lossd.adapters
from lossd.adapters.switch import Switch
from standin import install, remove

PACKAGE = Path(lossd.__file__).resolve().parents[1]
SWITCHES = [("transformers", "huggingface", "apply_lossd_to_llama"), ("trl", "trl", "apply_lossd_to_trl"),
            ("megatron", "megatron", "use_cross_entropy"), ("megatron", "megatron", "use_rotary"), ("megatron", "megatron", "use_rl"),
            ("megatron", "megatron", "SpecProvider"), ("verl", "verl", "apply_lossd_to_verl"),
            ("openrlhf", "openrlhf", "apply_lossd_to_openrlhf"), ("nemo_rl", "nemo_rl", "apply_lossd_to_nemo_rl")]


def test_importing_an_adapter_imports_no_trainer():
    code = ("import sys; sys.path.insert(0, sys.argv[1]); import lossd.adapters as a; [getattr(a, name) for name in a.__all__];"
            "print([p for p in ('transformers', 'trl', 'megatron', 'verl', 'openrlhf', 'nemo_rl') if p in sys.modules])")
    out = subprocess.run([sys.executable, "-c", code, str(PACKAGE)], check=True, capture_output=True, text=True).stdout
    assert out.strip() == "[]"


@pytest.mark.parametrize("package, adapter, name", SWITCHES)
def test_a_missing_package_is_an_import_error_that_names_it(client, monkeypatch, package, adapter, name):
    remove(monkeypatch, package)
    with pytest.raises(ImportError, match=f"lossd.adapters.{adapter}.*needs {package}.*pip install.*tested with"):
        getattr(getattr(lossd.adapters, adapter), name)(client=client)


def test_another_version_is_an_import_error_that_names_the_seam(client, monkeypatch):
    install(monkeypatch, {"trl.trainer.utils": {}})
    with pytest.raises(ImportError, match="trl.trainer.utils has no _ChunkedLogProbFunction.*tested with trl 1.16"):
        lossd.adapters.trl.apply_lossd_to_trl(client)


def test_an_unknown_adapter_is_named():
    with pytest.raises(AttributeError, match="did you mean megatron"):
        lossd.adapters.megatrn


def test_a_switch_puts_back_what_was_there():
    class Base:
        value = 1

    class Derived(Base):
        own = 2

    switch = Switch().replace(Derived, "value", 3).replace(Derived, "own", 4).replace(Derived, "own", 5)
    assert (Derived.value, Derived.own, switch.active) == (3, 5, True)
    switch.remove()
    switch.remove()
    assert (Derived.value, Derived.own, switch.active) == (1, 2, False) and "value" not in vars(Derived)
