"""The run-time type checker of `make test-shapes`: beartype, which also accepts an int where a float is annotated."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
