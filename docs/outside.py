#!/usr/bin/env python3
"""Preprocessor of the book: links to files outside of it become the paths of these files.

On a forge a page links to files of the repository (`../../ARCHITECTURE.md`). The built book has no repository beside it, and mdBook makes
`.html` of every `.md`, so such a link would lead nowhere.
"""

import json
import re
import sys

# [text](../../path#heading)
LINK = re.compile(r"\[([^\]]+)\]\(\.\./\.\./([^)#]+)(?:#[^)]*)?\)")


def in_words(link):
    text, path = link[1], link[2].rstrip("/")
    return text if text.strip("`").rstrip("/") == path else f"{text} (`{path}`)"


def rewrite(items):
    for chapter in (item["Chapter"] for item in items if isinstance(item, dict) and "Chapter" in item):
        chapter["content"] = LINK.sub(in_words, chapter["content"])
        rewrite(chapter["sub_items"])


if sys.argv[1:2] == ["supports"]:
    sys.exit(0)
_, book = json.load(sys.stdin)
rewrite(book["items"])
json.dump(book, sys.stdout)
