"""Train a small Transformer on the built-in grammar for a few steps, and look at its heads.

Everything `clearhead train` does is here: a configuration, sentences, the folder of a run, what its heads found.
"""

import tempfile
from pathlib import Path

from clearhead.translation import Config, RunDirectory
from clearhead.translation.data.dataset import from_grammar
from clearhead.translation.heads.emergence import measure_emergence
from clearhead.translation.training import TrainingCallbacks, train

config = Config.of(
    {
        "model": {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "feed_forward": 128},
        "training": {"steps": 40, "warmup": 10, "validate_every": 20, "batch_tokens": 1024},
        "text": {"validation": 50, "bleu": "none"},
    }
)
data = from_grammar(config)
run = RunDirectory(Path(tempfile.mkdtemp()) / "run")
train(
    data, config, run, report=TrainingCallbacks(measured=lambda metrics: print(metrics["step"], metrics["validation"]))
)
for finding in measure_emergence(run, data.probe).trained:
    print(f"{finding.relation:20} {finding.address} {finding.accuracy:.2f}, a fixed offset {finding.baseline:.2f}")
