"""Share of the attention of each answer on the retrieved passages of its prompt, by a running vLLM server.

Start the server in another terminal, then run this program:

    CLEARHEAD_OBSERVE='{"output": "attention", "client_options": true}' vllm serve MODEL
    python examples/rag_attention.py --folder attention
"""

import argparse
import json
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from rich.table import Table

from clearhead._utils.consoles import console_for_output
from clearhead.serving import read_requests

PASSAGES = {
    "Everest": "Mount Everest is 8,849 meters high. It lies on the border of Nepal and China.",
    "Danube": "The Danube is 2,850 kilometers long. It flows through ten countries into the Black Sea.",
    "Saturn": "Saturn is the sixth planet from the Sun. Its rings consist mostly of ice.",
    "Penguin": "The emperor penguin breeds during the Antarctic winter. The males keep the eggs warm.",
}
QUESTIONS = (
    "How high is Mount Everest?",
    "Into which sea does the Danube flow?",
    "What do the rings of Saturn consist of?",
    "When does the emperor penguin breed?",
)


def prompt(question: str) -> str:
    """Return the prompt of a question: all passages, as a retriever would rank them, and the question."""
    passages = "\n".join(f"- {text}" for text in PASSAGES.values())
    return f"Answer in one short sentence, using these passages.\n{passages}\n\n{question}"


def fetch(url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the JSON of a GET request, or of a POST request with a body."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=600) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        sys.exit(f"{url} answered {error.code}: {error.read(500).decode(errors='replace')}")
    except (OSError, ValueError) as error:  # OSError: refused or lost connections; ValueError: not a URL, not JSON
        reason = getattr(error, "reason", error)
        sys.exit(f"{url}: {reason}; expected a vLLM server that runs with CLEARHEAD_OBSERVE")


def answer(server: str, model: str, question: str) -> tuple[str, str]:
    """Send a question and return the id of the request and the answer."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt(question)}],
        "max_tokens": 32,
        "temperature": 0,
        # the values of vllm_xargs cannot be objects, so the options of a request are a string of JSON
        "vllm_xargs": {"clearhead": json.dumps({"spans": PASSAGES})},
    }
    response = fetch(f"{server}/v1/chat/completions", body)
    return response["id"], response["choices"][0]["message"]["content"]


def observed(folder: Path, ids: set[str], *, seconds: float = 30) -> dict[str, dict[str, Any]]:
    """Return the observed requests by id. The server writes them shortly after its answers."""
    deadline = time.monotonic() + seconds
    while True:
        lines = read_requests(folder) if (folder / "requests.jsonl").exists() else ()
        requests = {line["request"]: line for line in lines if line["request"] in ids}
        if len(requests) == len(ids):
            return requests
        if time.monotonic() > deadline:
            missing = len(ids) - len(requests)
            sys.exit(
                f"{folder / 'requests.jsonl'} has no line for {missing} of {len(ids)} requests; expected --folder to "
                "be the folder that CLEARHEAD_OBSERVE names, and a server that runs with it"
            )
        time.sleep(0.1)


def shares_table(answers: dict[str, tuple[str, str]], requests: dict[str, dict[str, Any]]) -> Table:
    """Return a table of the share of attention on each passage and on the first token, for each answer."""
    table = Table("question", "answer", title="Attention of the answer on the passages", show_lines=True)
    for name in (*PASSAGES, "first token"):
        table.add_column(name, justify="right")
    for id_, (question, text) in answers.items():
        means = requests[id_]["means"]["answer"]
        mass = means.get("mass", {})  # absent if a passage does not occur in the prompt that the model read
        shares = [*map(mass.get, PASSAGES), means.get("sink")]
        table.add_row(question, text.strip(), *("–" if share is None else f"{share:.1%}" for share in shares))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--server", default="http://localhost:8000", help="address of the server")
    parser.add_argument("--folder", type=Path, default=Path("attention"), help="folder that CLEARHEAD_OBSERVE names")
    options = parser.parse_args()
    server = options.server.rstrip("/")
    model = fetch(f"{server}/v1/models")["data"][0]["id"]
    answers = {}
    for question in QUESTIONS:
        id_, text = answer(server, model, question)
        answers[id_] = question, text
    console_for_output().print(shares_table(answers, observed(options.folder, set(answers))))


if __name__ == "__main__":
    main()
