"""Reading of texts in Markdown and LaTeX: their matrices become a draft of a worked example."""

from clearhead.explain.reading.draft import Draft, Question, load_draft, parse_draft

__all__ = ["Draft", "Question", "load_draft", "parse_draft"]
