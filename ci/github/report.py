"""What a run of the suites came to, for people who look at GitHub.

A report is a small JSON object. `collected` makes it out of what a run left behind,
`markdown` writes it for a job's summary or a comment, and `checked` takes it from a
stranger: what it lets through is of the right types and small, and `markdown` shows all
text of it as code, where no mention, link, or HTML means anything.
"""

import json
import pathlib
import re
import xml.etree.ElementTree

SCHEMA = "tidegate.report/1"
TEXT_AT_MOST = 600  # characters of one text
ENTRIES_AT_MOST = 200  # of one list
SHOWN = 40  # rows of one table
# The worst first: the order of the tables.
CLASSES = [
    "leak", "handle-leak", "backlog", "unexplained-growth", "ceiling", "hang", "crash",
    "inconclusive", "fragmentation", "retention", "dwell", "cache", "clean",
]  # fmt: skip

WHOLE = ("a whole number that is not negative", lambda value: type(value) is int and 0 <= value < 2**53)
TEXT = ("a text", lambda value: isinstance(value, str))
CLASS = ("a class of verdicts", lambda value: value in CLASSES)
FIELDS = {
    "failures": {"test": TEXT, "said": TEXT},
    "runs": {"scenario": TEXT, "class": CLASS, "sentence": TEXT, "rounds": WHOLE},
    "corpora": {"form": TEXT, "programs": WHOLE, "right": WHOLE, "false_alarms": WHOLE, "missed": WHOLE},
}
COUNTS = ["passed", "failed", "skipped"]


class Refused(Exception):
    """Why something is no report."""


def collected(folder):
    """The report of a run that left its JUnit files, run folders and results of a corpus
    in `folder` or below."""
    report = {"schema": SCHEMA, "passed": 0, "failed": 0, "skipped": 0}
    report |= {name: [] for name in FIELDS}
    folder = pathlib.Path(folder)
    for path in sorted(folder.rglob("junit.xml")):
        _add_tests(report, xml.etree.ElementTree.parse(path).getroot())
    # The second run, which takes stacks, lies in the first one's folder and judges nothing.
    for path in sorted(path for path in folder.rglob("run.json") if path.parent.name != "explain"):
        run = json.loads(path.read_text(encoding="utf-8"))
        report["runs"].append({
            "scenario": run["plan"]["name"],
            "class": run["verdict"]["class"],
            "sentence": run["verdict"]["sentence"],
            "rounds": run["verdict"]["judged"]["rounds_judged"],
        })  # fmt: skip
    # The corpus is run in two forms, and each leaves a file.
    for path in filter(pathlib.Path.is_file, (folder / "scenario.json", folder / "foreign.json")):
        corpus = json.loads(path.read_text(encoding="utf-8")) | {"form": path.stem}
        report["corpora"].append({name: corpus[name] for name in FIELDS["corpora"]})
    report["runs"].sort(key=lambda run: CLASSES.index(run["class"]))
    # The counts stand for all of them, and what was kept of a run is an artefact.
    for name in FIELDS:
        report[name] = report[name][:ENTRIES_AT_MOST]
    return report


def _add_tests(report, suites):
    for case in suites.iter("testcase"):
        failure = case.find("failure")
        failure = case.find("error") if failure is None else failure
        if failure is not None:
            report["failed"] += 1
            said = failure.get("message") or failure.text or "it failed"
            test = f"{case.get('classname', '')} {case.get('name', '')}".strip()
            report["failures"].append({"test": test, "said": said[:TEXT_AT_MOST]})
        elif case.find("skipped") is not None:
            report["skipped"] += 1
        else:
            report["passed"] += 1


def checked(text):
    """The report that a stranger's text holds; `Refused` if it is none."""

    def no_number(name):
        raise Refused(f"{name} is no number")

    try:
        report = json.loads(text, parse_constant=no_number)
    except (ValueError, RecursionError) as error:
        raise Refused(f"it is no JSON: {type(error).__name__}") from error
    if not isinstance(report, dict) or set(report) != {"schema", *COUNTS, *FIELDS}:
        raise Refused("it does not have the fields of a report")
    if report["schema"] != SCHEMA:
        raise Refused(f"its schema is not {SCHEMA}")
    for name in COUNTS:
        _check(name, report[name], WHOLE)
    for name, fields in FIELDS.items():
        entries = report[name]
        if not isinstance(entries, list) or len(entries) > ENTRIES_AT_MOST:
            raise Refused(f"{name} is no list of at most {ENTRIES_AT_MOST} entries")
        for entry in entries:
            if not isinstance(entry, dict) or set(entry) != set(fields):
                raise Refused(f"an entry of {name} does not have its fields")
            for field, kind in fields.items():
                _check(f"{name}.{field}", entry[field], kind)
    return report


def _check(name, value, kind):
    what, fits = kind
    if not fits(value):
        raise Refused(f"{name} is not {what}")


def code(text):
    """A text from anywhere, as code in a table: one line, and nothing in it is Markdown."""
    line = re.sub(r"[\s\x00-\x1f\x7f]+", " ", text).strip().replace("`", "'").replace("|", "\\|")
    # What turns the direction of writing, or has no width, can make text read otherwise.
    line = re.sub(r"[\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]", "", line)
    if len(line) > TEXT_AT_MOST:
        line = line[:TEXT_AT_MOST].rstrip("\\") + "…"
    return f"`{line}`" if line else ""


def markdown(report):
    """The report as Markdown: what it came to, and tables of the worst."""
    parts = [_sentence(report)]
    parts += _table("failed test", "what it said", ["test", "said"], report["failures"])
    runs = _table("scenario", "verdict", ["scenario", "class", "rounds", "sentence"], report["runs"])
    parts += ["What each run was judged as, which its test may have expected:", *runs] if runs else []
    parts += _table("corpus", "programs", ["form", "programs", "right", "false_alarms", "missed"], report["corpora"])
    return "\n\n".join(parts) + "\n"


def _sentence(report):
    run = report["passed"] + report["failed"]
    programs = sum(corpus["programs"] for corpus in report["corpora"])
    right = sum(corpus["right"] for corpus in report["corpora"])
    if run == 0 and programs == 0:
        return "**Not run: no test was run, so nothing has passed.**"
    said = []
    if run:
        said.append(f"{report['passed']:,} of {run:,} tests passed")
    if report["skipped"]:
        said.append(f"{report['skipped']:,} were skipped")
    if programs:
        said.append(f"{right:,} of {programs:,} programs of the corpus were judged right")
    return f"**{'; '.join(said)}.**"


def _table(first, second, fields, rows):
    if not rows:
        return []
    heads = [first, second] + [field.replace("_", " ") for field in fields[2:]]
    lines = ["| " + " | ".join(heads) + " |"]
    lines.append("|" + "|".join("--:" if isinstance(rows[0][field], int) else "---" for field in fields) + "|")
    for row in rows[:SHOWN]:
        cells = [f"{row[field]:,}" if isinstance(row[field], int) else code(row[field]) for field in fields]
        lines.append("| " + " | ".join(cells) + " |")
    parts = ["\n".join(lines)]
    if len(rows) > SHOWN:
        parts.append(f"{len(rows) - SHOWN:,} more are in the artefact.")
    return parts
