"""Set up before torch is imported: some CPUs advertise AMX and then trap on it in bfloat16 products.

Without a GPU, Triton kernels run in Triton's interpreter, which has to be said before they are defined.
"""

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
if not os.path.exists("/dev/nvidiactl"):
    os.environ.setdefault("TRITON_INTERPRET", "1")

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile(
    "clearhead",
    deadline=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize="CI" in os.environ,  # a landing should not hang on the draw; elsewhere every run looks at new problems
)
hypothesis.settings.load_profile("clearhead")


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles so small that a tiny problem has many, with edges that fall anywhere."""
    monkeypatch.setattr("clearhead.kernels.walk.TILE", (3, 4))
    monkeypatch.setattr("clearhead.kernels.walk.RANGED_TILE", (3, 4))
    monkeypatch.setattr("clearhead.kernels.walk.ALIGN", 2)
    monkeypatch.setattr("clearhead.kernels.streaming.UNSHIFTED_FROM", 5)
    monkeypatch.setattr("clearhead.weights.STRIP", 30)


@pytest.fixture(autouse=True)
def seeded():
    """Random numbers that do not depend on which tests ran before, and one thread per worker."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
