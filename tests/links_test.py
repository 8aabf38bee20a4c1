"""Every relative link and anchor of the Markdown pages resolves, and so does every page that a source file names."""

import re
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
PAGE = re.compile(r"\bdocs/[\w/-]+\.md\b")


def anchors(text):
    """Of a page's headings, as GitHub makes them."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", CODE.sub("", text), re.MULTILINE):
        heading = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", heading).replace(" ", "-")
        while anchor in found:
            anchor += "-1"
        found.add(anchor)
    return found


def broken(root, page):
    """The links of a page, a path below root, that lead nowhere."""
    out = []
    for link in LINK.findall(CODE.sub("", (root / page).read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (root / page).parent / path if path else root / page
        if not target.exists():
            out.append(f"{page}: {link}: there is no such file")
        elif anchor and (target.suffix != ".md" or anchor not in anchors(target.read_text())):
            out.append(f"{page}: {link}: there is no such heading")
    return out


class Links(unittest.TestCase):
    def test_all_resolve(self):
        tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
        pages = [name for name in tracked if name.endswith(".md") and (ROOT / name).exists()]
        self.assertGreater(len(pages), 10)
        self.assertEqual([], [problem for page in pages for problem in broken(ROOT, page)])
        missing = []
        for name in tracked:
            if name.endswith((".h", ".cc", ".cu", ".py", ".yaml", "CMakeLists.txt")) and (ROOT / name).exists():
                text = (ROOT / name).read_text(errors="replace")
                missing += [f"{name}: {page}" for page in PAGE.findall(text) if not (ROOT / page).exists()]
        self.assertEqual([], missing)

    def test_broken_ones_are_found(self):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "there.md").write_text("# A `code` heading, twice\n\n```\n# no heading\n```\n")
            (root / "page.md").write_text("[a](there.md#a-code-heading-twice) [b](#none) [c](gone.md) [d](there.md#no-heading)"
                                          " [e](https://example.org/gone)\n")
            self.assertEqual(broken(root, "page.md"), ["page.md: #none: there is no such heading",
                                                       "page.md: gone.md: there is no such file",
                                                       "page.md: there.md#no-heading: there is no such heading"])


if __name__ == "__main__":
    unittest.main()
