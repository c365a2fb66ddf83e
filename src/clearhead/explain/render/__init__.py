"""Worked calculations as text, HTML, LaTeX, Markdown and spreadsheets."""
