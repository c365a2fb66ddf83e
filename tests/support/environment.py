"""Environment variables that must be set before torch is imported."""

import os
import tempfile
from collections.abc import Mapping


def defaults(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the default of each variable, for variables that the user has not set."""
    # inductor's code depends on the CPU capability, but the key of its cache does not
    capability = environment.get("ATEN_CPU_CAPABILITY", "native")
    cache = os.path.join(tempfile.gettempdir(), f"clearhead-inductor-{os.getuid()}-{capability}")
    variables = {
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",  # some CPUs advertise AMX but trap on it in bfloat16 products
        "OMP_NUM_THREADS": "1",  # the thread count changes the order of sums; child processes inherit it
        "TORCHINDUCTOR_CACHE_DIR": cache,
    }
    if not os.path.exists("/dev/nvidiactl"):
        variables["TRITON_INTERPRET"] = "1"  # read when a kernel is defined
    return variables
