"""Environment variables that the tests need before torch is imported."""

import os
import tempfile
from collections.abc import Mapping


def defaults(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the value of each variable that applies unless the user has set it."""
    # inductor's code depends on the CPU capability, but its cache does not tell the capabilities apart
    capability = environment.get("ATEN_CPU_CAPABILITY", "native")
    cache = os.path.join(tempfile.gettempdir(), f"clearhead-inductor-{os.getuid()}-{capability}")
    found = {
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",  # some CPUs advertise AMX and then trap on it in bfloat16 products
        "OMP_NUM_THREADS": "1",  # changes the order of sums; processes that tests start have as many
        "TORCHINDUCTOR_CACHE_DIR": cache,
    }
    if not os.path.exists("/dev/nvidiactl"):
        found["TRITON_INTERPRET"] = "1"  # read when a kernel is defined
    return found
