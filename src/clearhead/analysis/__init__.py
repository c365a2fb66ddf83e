"""Statistics, roles and relations of attention heads, over texts and corpora; rollout, eviction scores and SVD."""

from clearhead.analysis.accumulate import HeadSums
from clearhead.analysis.conllu import Sentence, read_conllu
from clearhead.analysis.corpus import SummarizesWhileRunning, corpus_roles, corpus_statistics
from clearhead.analysis.eviction import eviction_scores
from clearhead.analysis.relations import RelationScore, relation_scores, wilson
from clearhead.analysis.resumable import Job, discard_results, run_jobs
from clearhead.analysis.roles import Loss, Roles, head_roles, roles_from_sums
from clearhead.analysis.rollout import rollout
from clearhead.analysis.statistics import (
    HeadStatistics,
    measure_heads,
    measure_layer,
    measure_queries,
    statistics_from_sums,
    sum_statistics,
)
from clearhead.analysis.summary import AttentionSummary, LayerSummary, summarize
from clearhead.analysis.svd import SVD, svd

__all__ = [
    "SVD",
    "AttentionSummary",
    "HeadStatistics",
    "HeadSums",
    "Job",
    "LayerSummary",
    "Loss",
    "RelationScore",
    "Roles",
    "Sentence",
    "SummarizesWhileRunning",
    "corpus_roles",
    "corpus_statistics",
    "discard_results",
    "eviction_scores",
    "head_roles",
    "measure_heads",
    "measure_layer",
    "measure_queries",
    "read_conllu",
    "relation_scores",
    "roles_from_sums",
    "rollout",
    "run_jobs",
    "statistics_from_sums",
    "sum_statistics",
    "summarize",
    "svd",
    "wilson",
]
