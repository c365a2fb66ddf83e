"""Train a small Transformer on the built-in grammar for a few steps, and look at its heads.

Everything `clearhead train` does is here: a configuration, sentences, the folder of a run, what its heads found.
"""

import tempfile
from pathlib import Path

from clearhead.translation import Config, Run
from clearhead.translation.data.dataset import of_grammar
from clearhead.translation.heads.emergence import specialised
from clearhead.translation.training import Report, train

config = Config.of(
    {
        "model": {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "feed_forward": 128},
        "training": {"steps": 40, "warmup": 10, "validate_every": 20, "batch_tokens": 1024},
        "text": {"validation": 50, "bleu": "none"},
    }
)
data = of_grammar(config)
run = Run(Path(tempfile.mkdtemp()) / "run")
train(data, config, run, report=Report(measured=lambda metrics: print(metrics["step"], metrics["validation"])))
for finding in specialised(run, data.probe).trained:
    print(f"{finding.relation:20} {finding.address} {finding.accuracy:.2f}, a fixed offset {finding.baseline:.2f}")
