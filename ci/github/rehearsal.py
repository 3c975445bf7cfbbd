"""A pull request's comment, without GitHub: what ci/report-of and ci/comment make of reports.

    rehearsal.py CONCLUSION=FILE...

Each FILE is the report.json that a run left behind, CONCLUSION what GitHub says of the run:
success or failure. One after the other they are an artefact of a run of the same pull request,
on the server that the tests use. Prints the comment; fails unless there is one, and one only.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import test_github as stage


def scripts(github, folder, event):
    """Runs both scripts as the workflow does."""
    (folder / "event.json").write_text(json.dumps(event))
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONDONTWRITEBYTECODE": "1",
        "GITHUB_API_URL": github.url,
        "GITHUB_SERVER_URL": "https://github.example",
        "GITHUB_REPOSITORY": "them/theirs",
        "GITHUB_EVENT_PATH": str(folder / "event.json"),
        "GITHUB_TOKEN": "secret",
    }
    text = folder / "comment.md"
    for words in (["report-of", text], ["comment", text, "--marker", "gpu-gate"]):
        command = [sys.executable, stage.CI / words[0], *words[1:]]
        subprocess.run(command, env=environment, check=True, timeout=60)


def main():
    github = stage.GitHub()
    github.pulls = [{"number": 7, "head": {"sha": stage.SHA}}]
    with tempfile.TemporaryDirectory() as folder:
        for number, argument in enumerate(sys.argv[1:], start=1):
            conclusion, _, file = argument.partition("=")
            github.artefacts = {str(number): stage.archive(pathlib.Path(file).read_bytes())}
            scripts(github, pathlib.Path(folder), stage.run_event(conclusion=conclusion))
    github.shutdown()
    github.server_close()
    if len(github.comments) != 1:
        sys.exit(f"rehearsal.py: {len(github.comments)} comments, and there was to be one")
    print(github.comments[0]["body"])


main()
