"""Public names are made of the words of docs/words.md; a new word is a choice somebody made.

`python -m tests.test_words --missing` prints the words that are missing, each with the names that use it.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.parsed import parsed, source_files

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "ropewalk"
PAGE = ROOT / "docs" / "words.md"

PIECE = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z0-9]+")
NUMBER = re.compile(r"[vV]?[0-9]+")
TICKED = re.compile(r"`([^`]+)`")
THEIRS = "The specifications' words and ours"  # explains; adds nothing to what names may use
OTHERS = "Other words in public names"
ENDINGS = (("s", ""), ("es", ""), ("ies", "y"), ("d", ""), ("ed", ""), ("ing", ""), ("ing", "e"))


def pieces(name: str) -> list[str]:
    """The words a name is made of; numbers and versions are not words."""
    return [piece.lower() for piece in PIECE.findall(name) if not NUMBER.fullmatch(piece)]


def dictionary(page: str) -> frozenset[str]:
    """The words of the page: the first column of its tables, and the lists of its last section."""
    words: set[str] = set()
    section = ""
    for line in page.splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ").strip()
        elif section == OTHERS:
            words.update(*map(pieces, TICKED.findall(line)))
        elif line.startswith("|") and section != THEIRS:
            words.update(*map(pieces, TICKED.findall(line.split("|")[1])))
    return frozenset(words)


def known(word: str, words: frozenset[str]) -> bool:
    """Is it in the dictionary, as it is or with a regular ending?"""
    return word in words or any(
        word.endswith(ending) and word.removesuffix(ending) + stem in words for ending, stem in ENDINGS
    )


def listed(tree: ast.Module) -> Iterator[str]:
    """The names in `__all__`; read, not imported, so that the check stays cheap."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign | ast.AugAssign):
            targets = [node.target]
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.value


def public_names() -> Iterator[tuple[str, str]]:
    """Every public name with its module."""
    for path in source_files():
        if not path.is_relative_to(SOURCE):
            continue
        inside = path.relative_to(SOURCE.parent).with_suffix("")
        module = ".".join(inside.parent.parts if path.name == "__init__.py" else inside.parts)
        for name in listed(parsed(path)):
            yield module, name


def missing(names: Iterator[tuple[str, str]], words: frozenset[str]) -> dict[str, list[str]]:
    """Words that are not in the dictionary, with the names that use them."""
    found: dict[str, list[str]] = defaultdict(list)
    for module, name in names:
        for word in pieces(name):
            if not known(word, words):
                found[word].append(f"{module}.{name}")
    return dict(sorted(found.items()))


def told(found: dict[str, list[str]]) -> str:
    """The missing words for a person to read."""
    return "\n".join(f"{word}: {', '.join(names)}" for word, names in found.items())


def test_public_names_are_made_of_words_of_the_dictionary():
    found = missing(public_names(), dictionary(PAGE.read_text(encoding="utf-8")))
    assert not found, (
        f"\n{told(found)}\n\nUse a word of docs/words.md, or add the new one there in backticks:"
        f' a noun with a meaning of its own to its table, a plain word to "{OTHERS}".'
    )


# The check itself.

SMALL = """\
# Words

| word | means |
|---|---|
| `content id` | digest of `bytes` |

## The specifications' words and ours

| they say | we say |
|---|---|
| `mempool` | pending |

## Other words in public names

To add: `max` `verify`
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ContentId", ["content", "id"]),
        ("BLOCK_BYTES_MAX", ["block", "bytes", "max"]),
        ("SHA2_256", ["sha2"]),
        ("blake3", ["blake3"]),
        ("STORE_V3", ["store"]),
        ("JCSReader", ["jcs", "reader"]),
        ("hash_", ["hash"]),
        ("__version__", ["version"]),
        ("rule_1_canonical_hash", ["rule", "canonical", "hash"]),
    ],
)
def test_names_come_apart_into_words(name, words):
    assert pieces(name) == words


def test_the_dictionary_is_first_columns_and_the_last_section():
    assert dictionary(SMALL) == {"content", "id", "max", "verify"}


def test_a_new_word_is_found_with_the_name_that_uses_it():
    names = iter([("ropewalk.x", "ContentIds"), ("ropewalk.x", "MempoolMax"), ("ropewalk.x", "verified")])
    found = missing(names, dictionary(SMALL))
    assert found == {"mempool": ["ropewalk.x.MempoolMax"], "verified": ["ropewalk.x.verified"]}
    assert told({"mempool": ["ropewalk.x.MempoolMax"]}) == "mempool: ropewalk.x.MempoolMax"


def test_all_is_read_however_it_is_written():
    source = '__all__ = ["a"]\n__all__ += ["b"]\n__all__: list[str] = ["c"]\nother = ["d"]\n'
    assert list(listed(ast.parse(source))) == ["a", "b", "c"]


def test_the_source_has_public_names():
    assert ("ropewalk.kernel.digest", "ContentId") in set(public_names())


def main(arguments: list[str]) -> int:
    """Print what is missing."""
    if arguments != ["--missing"]:
        print("usage: python -m tests.test_words --missing", file=sys.stderr)
        return 2
    found = missing(public_names(), dictionary(PAGE.read_text(encoding="utf-8")))
    if found:
        print(told(found))
    return 5 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
