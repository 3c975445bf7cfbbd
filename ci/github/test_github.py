"""The scripts that the workflows call, run as the workflows run them, against a server that
answers as GitHub does."""

import contextlib
import http.server
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest
import zipfile

import report

CI = pathlib.Path(__file__).resolve().parent.parent
REPOSITORY = "/repos/them/theirs"
SHA = "5" * 40


class GitHub(http.server.ThreadingHTTPServer):
    """A repository with pull requests, comments, artefacts and environments."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answers)
        self.comments, self.pulls, self.artefacts, self.reviewers = [], [], {}, 1
        self.asked, self.tokens_at_the_store = [], []
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def add_comment(self, body, login="github-actions[bot]"):
        self.comments.append({"id": 100 + len(self.comments), "body": body, "user": {"login": login}})


class Answers(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, value, status=200):
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        # Who is sent too much hangs up.
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def do_GET(self):
        github, (path, _, query) = self.server, self.path.partition("?")
        if path.startswith("/store/"):
            github.tokens_at_the_store.append(self.headers.get("Authorization"))
            return self.answer(github.artefacts[path.removeprefix("/store/")])
        if self.headers.get("Authorization") != "Bearer secret":
            return self.answer({"message": "Bad credentials"}, 401)
        github.asked.append(self.path)
        if path == f"{REPOSITORY}/pulls":
            return self.answer(github.pulls)
        if path == f"{REPOSITORY}/issues/7/comments":
            page = int(query.rpartition("page=")[2]) - 1
            return self.answer(github.comments[100 * page : 100 * page + 100])
        if path == f"{REPOSITORY}/actions/runs/9/artifacts":
            entries = [
                {"id": int(number), "size_in_bytes": len(data), "expired": False}
                for number, data in github.artefacts.items()
            ]
            return self.answer({"artifacts": entries})
        if path.startswith(f"{REPOSITORY}/actions/artifacts/"):
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{github.server_port}/store/{path.split('/')[-2]}")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        if path == f"{REPOSITORY}/environments/gpu-fork":
            rule = {"type": "required_reviewers", "reviewers": [{}] * github.reviewers}
            return self.answer({"protection_rules": [rule] if github.reviewers else []})
        return self.answer({"message": "Not Found"}, 404)

    def do_POST(self):
        self.write(lambda body: self.server.add_comment(body))

    def do_PATCH(self):
        number = int(self.path.rpartition("/")[2])
        old = next(comment for comment in self.server.comments if comment["id"] == number)
        self.write(lambda body: old.update(body=body))

    def write(self, change):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["body"]
        self.server.asked.append(f"{self.command} {self.path}")
        change(body)
        self.answer({})


class Case(unittest.TestCase):
    def setUp(self):
        self.github = GitHub()
        self.addCleanup(self.github.server_close)
        self.addCleanup(self.github.shutdown)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_script(self, script, *arguments, event=None, **environment):
        (self.folder / "event.json").write_text(json.dumps(event or {}))
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONDONTWRITEBYTECODE": "1",
            "GITHUB_API_URL": self.github.url,
            "GITHUB_SERVER_URL": "https://github.example",
            "GITHUB_REPOSITORY": "them/theirs",
            "GITHUB_EVENT_PATH": str(self.folder / "event.json"),
            "GITHUB_TOKEN": "secret",
        } | environment
        command = [sys.executable, CI / script, *map(str, arguments)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def run_event(**changes):
    run = {"id": 9, "event": "pull_request", "conclusion": "success", "head_sha": SHA, "head_branch": "a`$(id)`"}
    return {"workflow_run": run | {"head_repository": {"owner": {"login": "stranger"}}} | changes}


class Comment(Case):
    def comment(self, text, event=None):
        file = self.folder / "comment.md"
        file.write_text(text)
        event = event or {"pull_request": {"number": 7}}
        return self.run_script("comment", file, "--marker", "gpu-gate", event=event)

    def bodies(self):
        return [comment["body"] for comment in self.github.comments]

    def test_the_first_comment_is_written_and_the_next_takes_its_place(self):
        for text in ("first", "second"):
            done = self.comment(text)
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.bodies(), ["<!-- tidegate: gpu-gate -->\nsecond"])

    def test_a_comment_that_says_the_same_is_not_written_again(self):
        self.comment("same")
        self.github.asked.clear()
        self.assertIn("as it was", self.comment("same").stdout)
        self.assertFalse([asked for asked in self.github.asked if asked.startswith(("PATCH", "POST"))])

    def test_ours_is_found_behind_a_hundred_others(self):
        for number in range(100):
            self.github.add_comment(f"talk {number}", login="person")
        self.comment("first")
        self.comment("second")
        self.assertEqual(len(self.bodies()), 101)

    def test_a_strangers_comment_with_our_mark_is_not_ours(self):
        self.github.add_comment("<!-- tidegate: gpu-gate -->\npassed", login="stranger")
        self.comment("failed")
        self.assertEqual(len(self.bodies()), 2)
        self.assertIn("passed", self.bodies()[0])

    def test_a_comment_of_another_mark_stays(self):
        self.github.add_comment("<!-- tidegate: other -->\nold")
        self.comment("new")
        self.assertEqual(len(self.bodies()), 2)

    def test_what_is_longer_than_github_takes_is_cut(self):
        self.comment("x" * 70_000)
        self.assertLess(len(self.bodies()[0]), 65_536)
        self.assertIn("(cut;", self.bodies()[0])

    def test_the_pull_request_of_a_run_is_the_open_one_at_its_commit(self):
        self.github.pulls = [{"number": 6, "head": {"sha": "6" * 40}}, {"number": 7, "head": {"sha": SHA}}]
        self.assertEqual(self.comment("x", run_event()).returncode, 0)
        self.assertEqual(len(self.bodies()), 1)
        self.assertIn("head=stranger%3Aa%60%24%28id%29%60", self.github.asked[0])

    def test_a_pull_request_that_has_moved_on_gets_no_comment(self):
        self.github.pulls = [{"number": 7, "head": {"sha": "6" * 40}}]
        done = self.comment("x", run_event())
        self.assertEqual((done.returncode, self.bodies()), (0, []), done.stderr)
        self.assertIn("no comment", done.stdout)

    def test_a_run_of_a_fork_that_is_gone_gets_no_comment(self):
        self.assertIn("no comment", self.comment("x", run_event(head_repository=None)).stdout)

    def test_a_wrong_token_is_told_in_a_sentence(self):
        done = self.run_script("comment", __file__, "--marker", "a", event={"pull_request": {"number": 7}}, GITHUB_TOKEN="no")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"^ci/comment: GET .*: GitHub answers 401")


def honest():
    return {
        "schema": report.SCHEMA, "passed": 3, "failed": 1, "skipped": 0,
        "failures": [{"test": "suite proves", "said": "leak: 96 bytes in 1 block per round"}],
        "runs": [{"scenario": "proving", "class": "leak", "sentence": "96 bytes are never released", "rounds": 8}],
        "corpora": [{"form": "foreign", "programs": 105, "right": 104, "false_alarms": 1, "missed": 0}],
    }  # fmt: skip


def archive(text=None, name="report.json", level=zipfile.ZIP_DEFLATED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", level) as files:
        files.writestr(name, json.dumps(honest()) if text is None else text)
    return out.getvalue()


class ReportOf(Case):
    def read(self, event=None):
        out = self.folder / "out.md"
        done = self.run_script("report-of", out, event=event or run_event())
        self.assertEqual(done.returncode, 0, done.stderr)
        return out.read_text()

    def test_an_honest_report_is_written_as_tables(self):
        self.github.artefacts = {"1": archive()}
        text = self.read()
        self.assertIn("### The GPU gate passed", text)
        self.assertIn("3 of 4 tests passed; 104 of 105 programs of the corpus were judged right", text)
        self.assertIn("| `proving` | `leak` | 8 | `96 bytes are never released` |", text)
        self.assertIn("https://github.example/them/theirs/actions/runs/9", text)

    def test_the_store_of_artefacts_is_not_shown_the_token(self):
        self.github.artefacts = {"1": archive()}
        self.read()
        self.assertEqual(self.github.tokens_at_the_store, [None])

    def test_what_githubs_conclusion_is_a_report_cannot_change(self):
        self.github.artefacts = {"1": archive()}
        self.assertIn("did not pass", self.read(run_event(conclusion="failure")))

    def test_the_report_of_the_last_try_counts(self):
        last = json.dumps(honest() | {"passed": 77})
        self.github.artefacts = {"12": archive(last), "3": archive()}
        self.assertIn("77 of 78", self.read())

    def test_a_run_without_a_report_says_that_nothing_was_run(self):
        self.assertIn("left no report", self.read(run_event(conclusion="cancelled")))

    def test_hostile_archives_are_refused_and_said_to_be(self):
        bomb = archive(b" " * 64_000_000)
        self.assertLess(len(bomb), 256 * 1024)
        two = io.BytesIO(archive())
        with zipfile.ZipFile(two, "a") as files:
            files.writestr("more", "x")
        for why, data in {
            "larger than 262,144 bytes": archive(os.urandom(300_000)),
            "larger than 1,048,576 bytes": bomb,
            "something else than report.json": archive(name="../../report.json"),
            "something else than": two.getvalue(),
            "cannot be read": b"PK no archive",
            "no JSON": archive("[" * 200_000),
            "is no number": archive('{"passed": NaN}'),
        }.items():
            with self.subTest(why):
                self.github.artefacts = {"1": data}
                self.assertIn(why, self.read())


class Required(Case):
    def passes(self, *wanted, **results):
        needs = {name: {"result": result, "outputs": {}} for name, result in results.items()}
        return self.run_script("required", *wanted, NEEDS=json.dumps(needs)).returncode == 0

    def test_only_success_of_all_that_had_to_run_passes(self):
        self.assertTrue(self.passes("archive", "gpu", archive="success", gpu="success", approval="skipped"))
        for result in ("skipped", "failure", "cancelled", ""):
            self.assertFalse(self.passes("archive", "gpu", archive="success", gpu=result, approval="skipped"), result)

    def test_a_job_that_nobody_named_may_be_skipped_and_may_not_fail(self):
        self.assertFalse(self.passes("gpu", gpu="success", approval="failure"))

    def test_a_job_that_is_not_there_has_not_passed(self):
        self.assertFalse(self.passes("gpu", archive="success"))

    def test_without_jobs_nothing_passes(self):
        self.assertFalse(self.passes(gpu="success"))
        self.assertEqual(self.run_script("required", "gpu").returncode, 1)


class Approved(Case):
    def test_an_environment_with_reviewers_has_approved(self):
        self.assertEqual(self.run_script("approved", "gpu-fork").returncode, 0)

    def test_an_environment_without_reviewers_has_not(self):
        self.github.reviewers = 0
        self.assertIn("no required reviewers", self.run_script("approved", "gpu-fork").stderr)

    def test_an_environment_that_is_not_there_has_not(self):
        self.assertEqual(self.run_script("approved", "other").returncode, 1)


class Summary(Case):
    JUNIT = """<testsuites><testsuite name="s">
      <testcase name="gives everything back" classname="crate::memory"/>
      <testcase name="leaks" classname="crate::memory"><failure message="a | b&#10;`c` @all"/></testcase>
      <testcase name="later" classname="crate::memory"><skipped/></testcase>
    </testsuite></testsuites>"""
    RUN = {"plan": {"name": "proving"}, "verdict": {"class": "leak", "sentence": "kept", "judged": {"rounds_judged": 8}}}

    def left_behind(self, **files):
        for name, text in files.items():
            path = self.folder / "left" / name.replace("__", "/").replace("_json", ".json").replace("_xml", ".xml")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return self.run_script("summary", self.folder / "left", "--json", self.folder / "report.json")

    def test_tests_and_verdicts_are_told_and_the_report_is_one_that_is_let_through(self):
        run = json.dumps(self.RUN)
        clean = json.dumps(self.RUN | {"verdict": self.RUN["verdict"] | {"class": "clean"}})
        done = self.left_behind(
            junit_xml=self.JUNIT, runs__a__run_json=clean, runs__b__run_json=run, runs__b__explain__run_json=run
        )
        self.assertEqual(done.stdout.count("`leak`"), 1)
        self.assertIn("**1 of 2 tests passed; 1 were skipped.**", done.stdout)
        self.assertIn("| `crate::memory leaks` | `a \\| b 'c' @all` |", done.stdout)
        self.assertLess(done.stdout.index("`leak`"), done.stdout.index("`clean`"))
        self.assertEqual(report.checked((self.folder / "report.json").read_text())["failed"], 1)

    def test_a_folder_without_results_says_that_nothing_was_run(self):
        done = self.left_behind(suites_log="started", other_json="[]")
        self.assertEqual((done.returncode, done.stdout), (0, "**Not run: no test was run, so nothing has passed.**\n"))

    def test_the_corpus_is_counted_in_both_forms(self):
        corpus = json.dumps({"programs": 10, "right": 9, "false_alarms": 1, "missed": 0, "undecided": 0})
        done = self.left_behind(scenario_json=corpus, foreign_json=corpus)
        self.assertIn("**18 of 20 programs of the corpus were judged right.**", done.stdout)
        self.assertIn("| `foreign` | 10 | 9 | 1 | 0 |", done.stdout)

    def test_a_file_that_cannot_be_read_is_named(self):
        done = self.left_behind(junit_xml="<testsuites>")
        self.assertEqual(done.returncode, 1)
        self.assertIn("cannot be read", done.stderr)

    def test_the_jobs_summary_is_added_to(self):
        summary = self.folder / "summary.md"
        summary.write_text("before\n")
        self.run_script("summary", self.folder, GITHUB_STEP_SUMMARY=str(summary))
        self.assertRegex(summary.read_text(), r"^before\n\*\*Not run")


class Action(Case):
    """The steps of the composite action, with a cargo that only says how it was called."""

    CARGO = """#!/bin/sh
for argument; do echo "<$argument>"; done
echo "runs in $TIDEGATE_RUNS"
"""

    def setUp(self):
        super().setUp()
        (self.folder / "cargo").write_text(self.CARGO)
        (self.folder / "cargo").chmod(0o755)

    def step(self, *words, **environment):
        environment |= {"PATH": f"{self.folder}:{os.environ['PATH']}", "RUNNER_TEMP": str(self.folder / "temp")}
        return subprocess.run([CI / "action", *words], env=environment, cwd=self.folder, capture_output=True, text=True)

    def test_the_tests_get_the_arguments_as_a_shell_would_split_them_and_no_shell_sees_them(self):
        done = self.step("test", ARGUMENTS="""--workspace -E 'test(a b) | test($(touch x))' ; id""")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("<nextest>\n<run>\n", done.stdout)
        self.assertIn("<--workspace>\n<-E>\n<test(a b) | test($(touch x))>\n<;>\n<id>\n", done.stdout)
        self.assertFalse((self.folder / "x").exists())

    def test_runs_and_results_are_kept_where_the_next_steps_look(self):
        done = self.step("test")
        kept = self.folder / "temp" / "tidegate"
        self.assertIn(f"runs in {kept}/runs", done.stdout)
        self.assertIn(f'path = "{kept}/junit.xml"', (kept / "nextest.toml").read_text())
        (kept / "junit.xml").write_text(Summary.JUNIT)
        self.assertIn("1 of 2 tests passed", self.step("summary").stdout)

    def test_runs_are_judged_and_what_is_said_of_them_is_added_to_the_summary(self):
        (self.folder / "cargo-tidegate").write_text('#!/bin/sh\necho "<$@>"\nexit 3\n')
        (self.folder / "cargo-tidegate").chmod(0o755)
        kept = self.folder / "temp" / "tidegate"
        for name in ("runs/a.1/run.json", "runs/a.1/explain/run.json", "runs/b.2/run.json"):
            (kept / name).parent.mkdir(parents=True)
            (kept / name).write_text(json.dumps(Summary.RUN))
        done = self.step("gate", DOCS="https://github.example/them/tidegate/blob/main/docs")
        self.assertEqual(done.returncode, 3, done.stderr)
        said = f"<gate {kept}/runs/a.1/run.json {kept}/runs/b.2/run.json --policy {kept}/tidegate.toml "
        self.assertTrue(done.stdout.startswith(said), done.stdout)
        self.assertIn("--docs https://github.example/them/tidegate/blob/main/docs --annotations", done.stdout)
        self.assertEqual((kept / "tidegate.toml").read_text(), "[baselines]\nrequired = false\n")
        # The project's own policy counts where there is one.
        (self.folder / "tidegate.toml").write_text("")
        self.assertNotIn("--policy", self.step("gate").stdout)
        (kept / "gate.md").write_text("### Memory: failed\n")
        summary = self.step("summary").stdout
        self.assertTrue(summary.endswith("### Memory: failed\n"), summary)
        self.assertNotIn("What each run was judged as", summary)

    def test_without_a_run_nothing_is_judged_and_nothing_passes(self):
        done = self.step("gate")
        self.assertEqual(done.returncode, 5)
        self.assertIn("not judged", done.stderr)

    def test_arguments_that_no_shell_could_split_fail(self):
        self.assertNotEqual(self.step("test", ARGUMENTS="'open").returncode, 0)


class Gpu(Case):
    """ci/gpu in a repository that holds nothing else, with a card and suites that only say so."""

    def setUp(self):
        super().setUp()
        self.suite = self.folder / "suite"
        self.program("ci/gpu", (CI / "gpu").read_text())
        self.program("nvidia-smi", "#!/bin/sh\necho GPU 0\n")
        self.program(
            "suite/cargo-nextest",
            "#!/bin/sh\nmkdir -p target/nextest/ci\necho junit >target/nextest/ci/junit.xml\n"
            'mkdir -p "$TIDEGATE_RUNS"; cd / && ls "$TIDEGATE_RUNS" && exit "${SUITES_END_WITH:-0}"\n',
        )
        self.program("suite/corpus-matrix", "#!/bin/sh\necho judged\n")
        self.program(
            "suite/cargo-tidegate",
            '#!/bin/sh\ncase "$*" in *--lose-parameters) exit "${LOSS_ENDS_WITH:-3}" ;; esac\n',
        )

    def program(self, name, text):
        (self.folder / name).parent.mkdir(exist_ok=True)
        (self.folder / name).write_text(text)
        (self.folder / name).chmod(0o755)

    def gpu(self, *words, **environment):
        environment = os.environ | {"PATH": f"{self.folder}:{os.environ['PATH']}"} | environment
        return subprocess.run([self.folder / "ci/gpu", *words], env=environment, capture_output=True, text=True)

    def test_without_a_gpu_nothing_is_run_and_nothing_passes(self):
        self.program("nvidia-smi", "#!/bin/sh\nexit 9\n")
        done = self.gpu("run", self.suite)
        self.assertEqual(done.returncode, 5)
        self.assertIn("not run: no GPU", done.stderr)
        self.assertEqual(done.stdout, "")

    def test_results_and_runs_are_left_where_the_summary_looks(self):
        done = self.gpu("run", self.suite, TIDEGATE_GPU_OUT="out")
        self.assertEqual(done.returncode, 0, done.stderr)
        left = sorted(path.name for path in (self.folder / "out").iterdir())
        self.assertEqual(left, ["foreign.log", "junit.xml", "runs", "scenario.log", "suites.log"])

    def test_suites_that_fail_fail_whatever_the_corpus_says(self):
        self.assertEqual(self.gpu("run", self.suite, SUITES_END_WITH="100").returncode, 3)

    def test_a_loss_that_the_gate_lets_through_fails(self):
        done = self.gpu("run", self.suite, LOSS_ENDS_WITH="0")
        self.assertEqual(done.returncode, 3)
        self.assertIn("exit code 0, not 3", done.stderr)

    def test_suites_that_never_started_do_not_pass_with_an_earlier_result(self):
        self.gpu("run", self.suite)
        self.program("suite/cargo-nextest", "#!/bin/sh\nexit 0\n")
        self.assertNotEqual(self.gpu("run", self.suite).returncode, 0)

    def test_programs_stay_programs_on_their_way_to_the_gpu(self):
        self.assertEqual(self.gpu("pack", self.suite).returncode, 0)
        (self.suite / "cargo-nextest").unlink()
        self.assertEqual(self.gpu("unpack", self.suite).returncode, 0)
        self.assertTrue(os.access(self.suite / "cargo-nextest", os.X_OK))


class Checked(unittest.TestCase):
    def refused(self, **changes):
        with self.assertRaises(report.Refused):
            report.checked(json.dumps(honest() | changes))

    def test_only_the_fields_types_and_sizes_of_a_report_are_let_through(self):
        self.assertEqual(report.checked(json.dumps(honest())), honest())
        self.refused(more=1)
        self.refused(schema="tidegate.report/2")
        for count in (-1, 1.5, True, "1", None, 2**60):
            self.refused(passed=count)
        self.refused(runs=[honest()["runs"][0] | {"class": "fine"}])
        self.refused(runs=[honest()["runs"][0] | {"class": ["leak"]}])
        self.refused(failures=[{"test": "t", "said": {"html": "x"}}])
        self.refused(failures=honest()["failures"] * 201)
        self.refused(corpora={})

    def test_text_of_strangers_is_shown_as_code_on_one_line_whatever_it_holds(self):
        hostile = "`x`](javascript:0)\n\n# @team <img src=x> | <!-- tidegate --> \u202eback\u200b" + "y" * 1000
        shown = report.code(hostile)
        self.assertEqual(shown.count("`"), 2)
        self.assertTrue(shown.startswith("`") and shown.endswith("`"))
        self.assertNotRegex(shown, "[\n\u202e\u200b]|[^\\\\]\\|")
        self.assertLess(len(shown), 610)

    def test_a_long_table_is_cut_and_says_so(self):
        self.assertIn("60 more are in the artefact", report.markdown(honest() | {"runs": honest()["runs"] * 100}))


if __name__ == "__main__":
    sys.exit(unittest.main())
