"""Grammar that generates English sentences with Japanese translations and annotated relations."""

from clearhead.translation.data.grammar.generate import (
    SOURCE_RELATIONS,
    TARGET_RELATIONS,
    AnnotatedPair,
    Link,
    sentences,
    vocabulary,
)

__all__ = ["SOURCE_RELATIONS", "TARGET_RELATIONS", "AnnotatedPair", "Link", "sentences", "vocabulary"]
