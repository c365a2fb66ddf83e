"""Numbers about heads: statistics, roles, syntactic relations, and their sums over corpora."""
