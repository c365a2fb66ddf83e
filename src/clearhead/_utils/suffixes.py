"""Suffixes of file names, and the formats that they stand for."""

import os

TEXT_FORMATS = {
    "text": (".txt", ".text", ".log"),
    "json": (".json",),
    "html": (".html", ".htm"),
    "markdown": (".md", ".markdown"),
    "latex": (".tex",),
    "toml": (".toml",),
    "csv": (".csv",),
    "tsv": (".tsv",),
    "svg": (".svg",),
}
_FORMATS = TEXT_FORMATS | {
    "xlsx": (".xlsx",),
    "xls": (".xls",),
    "ods": (".ods",),
    "docx": (".docx",),
    "doc": (".doc",),
    "odt": (".odt",),
    "pdf": (".pdf",),
    "png": (".png",),
    "jpeg": (".jpg", ".jpeg"),
    "safetensors": (".safetensors",),
    "gguf": (".gguf",),
}


def check_suffix(name: str, path: str | os.PathLike[str], *formats: str) -> str | None:
    """Return the format of a file to write by its suffix, or None for an unknown one, as of llama-3.2 or /dev/stdout.

    Raises:
        ValueError: if it is another format than `formats`.
    """
    suffix = os.path.splitext(path)[1].lower()
    file_format = next((each for each, suffixes in _FORMATS.items() if suffix in suffixes), None)
    if file_format is not None and file_format not in formats:
        expected = ", ".join(_FORMATS[each][0] for each in formats)
        raise ValueError(f"{name} is {path}; expected a name that ends in {expected}")
    return file_format
