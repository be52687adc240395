"""The text of the demo: the Python language reference, as CPython ships it for ``help()``."""

from __future__ import annotations

import re
from pathlib import Path

_WORD = re.compile(r"[A-Za-z]{3,}")
# Words that would be empty of interest, or endless: a topic is prose, tables and rulers.
WORDS_PER_LINE_MIN = 4


def lines(words_max: int) -> list[list[str]]:
    """Lines of the reference as lists of lower-case words, up to `words_max` words altogether."""
    from pydoc_data.topics import topics

    taken: list[list[str]] = []
    words = 0
    for topic in sorted(topics):
        for line in topics[topic].splitlines():
            found = [word.lower() for word in _WORD.findall(line)]
            if len(found) < WORDS_PER_LINE_MIN:
                continue
            taken.append(found[: words_max - words])
            words += len(taken[-1])
            if words >= words_max:
                return taken
    return taken


def rows(words_max: int) -> list[tuple[int, int, str]]:
    """The text as rows (line number, word number, word)."""
    return [
        (line_no, word_no, word)
        for line_no, line in enumerate(lines(words_max))
        for word_no, word in enumerate(line)
    ]


def write_files(folder: Path, files: int, words_max: int) -> set[str]:
    """Write the text to `files` files, a line number and a tab before each line, for a file source.

    Returns
    -------
    set of str
        Row ids (``line:word``) of all words written.
    """
    folder.mkdir(parents=True)
    text = list(enumerate(lines(words_max)))
    size = -(-len(text) // files)
    for number in range(files):
        part = text[number * size : (number + 1) * size]
        body = "".join(f"{line_no}\t{' '.join(words)}\n" for line_no, words in part)
        # Without a final newline there is no empty last line to be read.
        (folder / f"part-{number:03}.txt").write_text(body.rstrip("\n"))
    return {f"{n}:{i}" for n, words in text for i in range(len(words))}
