"""A grammar that writes English sentences with their Japanese translations."""

from clearhead.translation.data.grammar.generate import (
    SOURCE_RELATIONS,
    TARGET_RELATIONS,
    AnnotatedPair,
    Link,
    sentences,
    vocabulary,
)

__all__ = ["SOURCE_RELATIONS", "TARGET_RELATIONS", "AnnotatedPair", "Link", "sentences", "vocabulary"]
