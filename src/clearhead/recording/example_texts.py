"""Default texts for models to run on."""

# Translation into Japanese changes the word order of this sentence.
EXAMPLE_SENTENCE = "My mother was cooking dinner in the kitchen when I came home from school yesterday."
# Ordinary prose, longer than the largest offset of a positional head.
EXAMPLE_PASSAGES = (
    "When the ferry left the harbour, the rain had already stopped, and the old woman at the window folded her coat. "
    "She had promised her brother that she would not wait for him, but she was still looking back at the lighthouse. "
    "Behind her, two children were arguing quietly about the colour of the sea: one said that it was green, the other "
    "that it was never the same twice. The captain, who knew the passage better than anybody, was drinking cold tea.",
    "The first machines that could translate a sentence did it word by word. They looked each word up in a table, "
    "wrote down what they found, and left it to the reader to put the pieces in order. That works for a shopping list. "
    "It does not work for a question, for a joke, or for a language that keeps its verbs for the end.",
)
