"""ci/book finds what is wrong with a page: books of one page, in a folder of their own."""

import contextlib
import importlib.machinery
import importlib.util
import io
import pathlib
import tempfile
import unittest

CI = pathlib.Path(__file__).resolve().parent.parent


def script(name):
    loader = importlib.machinery.SourceFileLoader(name, str(CI / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


class Book(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name).resolve()
        self.book = script("book")
        self.book.ROOT, self.book.BOOK = self.root, self.root / "docs"
        (self.root / "docs").mkdir()
        (self.root / "book.toml").write_text('[book]\nsrc = "docs"\n')
        (self.root / "README.md").write_text("# Readme\n")
        self.write("SUMMARY.md", "- [Page](page.md)\n")
        self.write("page.md", "# Page\n")

    def write(self, name, text):
        (self.root / "docs" / name).write_text(text)

    def problems(self, text):
        self.write("page.md", text)
        return list(self.book.problems_of_structure())

    def said(self, text):
        """What is wrong with the commands of a page."""
        self.write("page.md", text)
        commands = self.book.commands_of(self.root / "docs" / "page.md")
        return [self.book.run(command, self.root, None) for command in commands]

    def test_a_whole_book_has_no_problems(self):
        self.assertEqual(self.problems("# Page\n\n[up](#page), [it](page.md#page), `[no](link)`\n"), [])

    def test_links_that_lead_nowhere_or_out_of_the_book_are_found(self):
        self.assertRegex(self.problems("[x](gone.md)")[0], "gone.md leads to nothing")
        self.assertRegex(self.problems("[x](../README.md)")[0], "leads out of the book")
        self.assertRegex(self.problems("# Page\n[x](#other)")[0], "no such heading")

    def test_a_page_that_the_summary_forgets_is_found(self):
        self.write("forgotten.md", "# Forgotten\n")
        self.assertEqual(self.problems("# Page\n"), ["docs/SUMMARY.md: forgotten.md is missing"])

    def test_a_block_of_toml_that_is_none_is_found(self):
        self.assertRegex(self.problems("```toml\na = \n```\n")[0], "is none")

    def test_a_command_that_fails_or_ends_otherwise_than_the_page_says_is_found(self):
        self.assertRegex(self.said("```console\n$ false\n```\n")[0], "ended with 1 and not with 0")
        self.assertEqual(self.said("<!-- exit: 3 -->\n```console\n$ exit 3\n```\n"), [None])
        self.assertEqual(self.said("<!-- exit: 0 or 5 -->\n```console\n$ exit 5\n```\n"), [None])
        self.assertRegex(self.said("<!-- exit: 3 -->\n```console\n$ true\n```\n")[0], "and not with 3")

    def test_output_may_differ_in_numbers_and_lines_and_in_nothing_else(self):
        page = "```console\n$ printf 'leak: 96 bytes in 1 block\\nper round\\nend\\n'\n{}\n```\n"
        for shown in ("leak: 1.5 KiB in 20 blocks per\nround", "...\nend", "leak:\n...\nend"):
            self.assertEqual(self.said(page.format(shown)), [None], shown)
        for shown in ("cache: 96 bytes", "end\n...\nleak"):
            self.assertRegex(self.said(page.format(shown))[0], "it did not print", shown)

    def test_commands_go_on_over_lines(self):
        page = "```console\n$ cat <<'END'\none\n$ two\nEND\n$ for n in 1; do\n>   echo three\n> done\n$ echo \\\n  four\n```\n"
        self.write("page.md", page)
        texts = [command.text for command in self.book.commands_of(self.root / "docs" / "page.md")]
        self.assertEqual(texts, ["cat <<'END'\none\n$ two\nEND", "for n in 1; do\n  echo three\ndone", "echo \\\n  four"])

    def test_a_comment_that_says_nothing_about_a_command_is_refused(self):
        with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()):
            self.said("<!-- exits: 3 -->\n```console\n$ exit 3\n```\n")

    def test_what_is_not_run_has_a_reason(self):
        self.write("page.md", "<!-- exit: 5; not run: it is slow; and loud -->\n```console\n$ x\n```\n")
        command = self.book.commands_of(self.root / "docs" / "page.md")[0]
        self.assertEqual((command.exits, command.not_run), ((5,), "it is slow; and loud"))


if __name__ == "__main__":
    unittest.main()
