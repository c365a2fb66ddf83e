"""Train a small Transformer on the built-in grammar for a few steps, and measure its heads.

The steps are those of `clearhead train`: configuration, sentences, run directory, training, head measurements.
"""

import tempfile
from pathlib import Path

from clearhead.translation import Config, RunDirectory, TrainingCallbacks, from_grammar, train
from clearhead.translation.heads import measure_emergence

config = Config.from_dict(
    {
        "model": {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "feed_forward": 128},
        "training": {"steps": 40, "warmup": 10, "validate_every": 20, "batch_tokens": 1024},
        "text": {"validation": 50, "bleu": "none"},
    }
)
data = from_grammar(config)
run = RunDirectory(Path(tempfile.mkdtemp()) / "run")
train(
    data,
    config,
    run,
    callbacks=TrainingCallbacks(on_validation=lambda metrics: print(metrics["step"], metrics["validation"])),
)
for result in measure_emergence(run, data.probe).trained:
    print(f"{result.relation:20} {result.address} {result.accuracy:.2f}, a fixed offset {result.baseline:.2f}")
