"""Serves a model and sends example requests; prints each command and its answer. Ctrl-C stops the server.

`make demo` runs this on the MovieLens model.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

LOOKUP = {"features": {"user_id": [1, 2], "genres": [["Comedy", "Drama"], []]}}
FILM = {"user_id": 1, "film_id": 50, "occupation": "technician", "genres": ["Action", "Sci-Fi"]}
PREDICT = {"instances": [{**FILM, "recent_films": [1, 2]}, {**FILM, "recent_films": []}]}
ROWS = {"ids": [50]}


def main() -> int:
    """Serves the model and sends the requests; returns 0 if every request was answered."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model_name", default="movielens")
    parser.add_argument("--model_base_path", default="models/movielens")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8500, help="gRPC")
    parser.add_argument("--rest_api_port", type=int, default=8501, help="HTTP")
    options = parser.parse_args()
    for port, variable in ((options.port, "PORT"), (options.rest_api_port, "REST_PORT")):
        with socket.socket() as probe:
            if probe.connect_ex((options.host, port)) == 0:
                say(f"Another program listens on {options.host}:{port}: end it, or `make demo {variable}=` another.\n")
                return 1
    # Ended by a supervisor, the program takes the server with it, as it does at Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    server = subprocess.Popen(
        [sys.executable, "-m", "service", "--log_format=text", "--log_level=warning"]
        + [f"--{name}={getattr(options, name)}" for name in ("model_name", "model_base_path", "host", "port")]
        + [f"--rest_api_port={options.rest_api_port}"]
    )
    failures = 1
    try:
        base = f"http://{options.host}:{options.rest_api_port}"
        if wait_until_ready(server, base):
            film = label_of_film(f"{base}/v1/models/{options.model_name}")
            failures = show_requests(options, base, film)
            pages = f" In a browser: {base}/console (the model), {base}/docs (all routes)"
            say(f"\nThe server runs until Ctrl-C.{pages if film is not None else ''}\n")
            server.wait()
    except KeyboardInterrupt:
        pass
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=60)
    return failures


def wait_until_ready(server: subprocess.Popen[bytes], base: str) -> bool:
    """Waits until /readyz says that the server is ready; returns False if it stops, or after two minutes."""
    say("Starting the server (TensorFlow, which predictions need, takes some seconds to load) ...\n")
    reason = ""
    for _ in range(600):
        if server.poll() is not None:
            say("The server stopped; its messages above say why.\n")
            return False
        try:
            with urllib.request.urlopen(f"{base}/readyz", timeout=2):
                return True
        except urllib.error.HTTPError as error:
            reason = error.read().decode()
        except OSError as error:
            reason = str(error)
        time.sleep(0.2)
    say(f"The server is not ready after two minutes: {reason}\n")
    return False


def show_requests(options: argparse.Namespace, base: str, film: str | None) -> int:
    """Prints and sends each example request; returns the number of requests that failed.

    Args:
      film: the title of a film whose nearest films are asked for; None: the server has no such search.
    """
    model = f"{base}/v1/models/{options.model_name}"
    grpc = [shortest(sys.executable), "examples/grpc_predict.py", f"--server={options.host}:{options.port}"]
    commands = [
        ("Embeddings of two users, and of two lists of genres, the second empty", curl(f"{model}:lookup", LOOKUP)),
        ("Predicted ratings of film 50 by user 1, with and without recent films", curl(f"{model}:predict", PREDICT)),
        ("One row of a table", curl(f"{model}/tables/film:rows", ROWS)),
        (
            "The same prediction over gRPC, with the stock tensorflow-serving-api stubs",
            [*grpc, f"--model_name={options.model_name}"],
        ),
    ]
    if film is None:
        say("\nThe search for the nearest films and the console are left out: they need the native core.\n")
    else:
        nearest = {"labels": [film], "k": 5, "metric": "cosine"}
        search = curl(f"{model}/tables/film:neighbors", nearest)
        commands.insert(3, (f"The films that are nearest to {film}, by name", search))
    failures = 0
    for number, (title, command) in enumerate(commands, 1):
        say(f"\n{number}. {title}\n\n   {shell(command)}\n\n")
        done = subprocess.run(command, capture_output=True, text=True)
        answer = done.stdout.strip() or done.stderr.strip()
        say("   " + (answer if len(answer) < 400 else answer[:400] + " ...").replace("\n", "\n   ") + "\n")
        failures += done.returncode != 0 or '"error"' in answer
    return failures


def label_of_film(model: str) -> str | None:
    """Returns the title of film 50; None from the reference server, which serves where there is no native core."""
    try:
        with urllib.request.urlopen(f"{model}/tables/film:row?id=50") as answer:
            return str(json.load(answer)["label"])
    except urllib.error.HTTPError as error:
        if error.code != 501:
            raise
        return None


def curl(url: str, body: object) -> list[str]:
    """Returns a curl command, as a list of words, that posts JSON to a URL."""
    return ["curl", "-sS", "-X", "POST", url, "-d", json.dumps(body)]


def shortest(path: str) -> str:
    """Returns the path relative to the current folder if the path lies below it, and the path itself otherwise."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def shell(command: list[str]) -> str:
    """Returns a command as a line that a shell accepts; the JSON of this demo has no single quotes."""
    return " ".join(f"'{word}'" if set(word) & set(' {["') else word for word in command)


def say(text: str) -> None:
    """Writes text to standard output and flushes it."""
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
