"""Head analysis of translation models: probes, emergence during training, and ablation."""

from clearhead.translation.heads.ablation import AblationEffect, ablation_effect
from clearhead.translation.heads.emergence import Emergence, measure_emergence
from clearhead.translation.heads.emergence_plot import plot_emergence
from clearhead.translation.heads.film import DEFAULT_FILM_TEXT, read_film
from clearhead.translation.heads.probes import ProbeResult, head_accuracies, probe_results

__all__ = [
    "DEFAULT_FILM_TEXT",
    "AblationEffect",
    "Emergence",
    "ProbeResult",
    "ablation_effect",
    "head_accuracies",
    "measure_emergence",
    "plot_emergence",
    "probe_results",
    "read_film",
]
