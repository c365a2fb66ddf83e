"""Output of `clearhead` without arguments: five things to try."""

from __future__ import annotations

from clearhead._utils.extras import missing_packages

# a command, what it shows, and the extras that it requires
FIRST_STEPS = (
    ("clearhead view", "every head of the bundled translator", ("view", "translate")),
    ("clearhead view --model MODEL", "your model: a folder, a GGUF file or a hub id", ("view", "hf")),
    ("clearhead explain song", "one attention layer, calculated step by step", ()),
    ("clearhead learn", "a course of twelve short pages, with questions", ("explain",)),
    ("clearhead doctor", "what runs on this machine, and what is missing", ()),
)


def first_steps() -> str:
    """Return the five commands, with the extras that must be installed first."""
    width = max(len(command) for command, _, _ in FIRST_STEPS)
    lines = ["Multi-head attention you can see through. Five things to try:", ""]
    for command, shown, extras in FIRST_STEPS:
        lines.append(f"  {command:{width}}  {shown}")
        missing = [extra for extra in extras if missing_packages(extra)]
        if missing:
            lines.append(f"  {'':{width}}  first: pip install 'clearhead[{','.join(missing)}]'")
    lines += ["", "`clearhead --help` lists all commands, and `clearhead COMMAND --help` the options of one."]
    return "\n".join(lines)
