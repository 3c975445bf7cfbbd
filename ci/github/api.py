"""GitHub's interface, as far as the workflows need it, with Python's own library alone.

Which repository, with which token and about which event is in the environment that GitHub
Actions gives to each step; tests put a server of their own there.
"""

import json
import os
import urllib.error
import urllib.parse
import urllib.request

# No answer that is read here comes near to it.
ANSWER_AT_MOST = 8 * 1024 * 1024


class Problem(Exception):
    """What went wrong, for the person who reads the log."""


def setting(name):
    """What the environment says, which must say it."""
    value = os.environ.get(name)
    if not value:
        raise Problem(f"{name} is not set; GitHub Actions sets it, or the workflow must")
    return value


def event():
    """What set off the workflow."""
    with open(setting("GITHUB_EVENT_PATH"), encoding="utf-8") as file:
        return json.load(file)


def repository():
    """This repository, as OWNER/NAME."""
    return setting("GITHUB_REPOSITORY")


def fetch(path, query=None, method="GET", body=None, at_most=ANSWER_AT_MOST):
    """The bytes that GitHub answers with; more than `at_most` of them are refused."""
    url = setting("GITHUB_API_URL") + path
    if query:
        url += "?" + urllib.parse.urlencode(query)
    request = urllib.request.Request(url, method=method)
    request.add_header("Accept", "application/vnd.github+json")
    request.add_header("X-GitHub-Api-Version", "2022-11-28")
    # An artefact lies with another host, which has no business with the token.
    request.add_unredirected_header("Authorization", f"Bearer {setting('GITHUB_TOKEN')}")
    if body is not None:
        request.data = json.dumps(body).encode()
        request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            read = answer.read(at_most + 1)
    except urllib.error.HTTPError as error:
        said = error.read(300).decode(errors="replace")
        raise Problem(f"{method} {path}: GitHub answers {error.code}: {said}") from error
    except OSError as error:
        raise Problem(f"{method} {path}: {error}") from error
    if len(read) > at_most:
        raise Problem(f"{method} {path}: the answer is larger than {at_most:,} bytes")
    return read


def call(path, **rest):
    """What GitHub answers, as JSON."""
    return json.loads(fetch(path, **rest))


def every(path, query=None):
    """All entries of a list that comes in pages."""
    page = 1
    while True:
        entries = call(path, query={**(query or {}), "per_page": 100, "page": page})
        yield from entries
        if len(entries) < 100:
            return
        page += 1


def pull_request(event):
    """The number of the pull request that the event is about; None if there is none that is
    open and still at the commit that was looked at.

    For a `workflow_run` GitHub is asked: what the run left behind could name any.
    """
    if "pull_request" in event:
        return int(event["pull_request"]["number"])
    run = event["workflow_run"]
    head = run.get("head_repository")
    if run["event"] != "pull_request" or not head:
        return None
    branch = f"{head['owner']['login']}:{run['head_branch']}"
    found = every(f"/repos/{repository()}/pulls", {"state": "open", "head": branch})
    numbers = [pull["number"] for pull in found if pull["head"]["sha"] == run["head_sha"]]
    return int(numbers[0]) if numbers else None
