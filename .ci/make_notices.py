"""Writes native/THIRD-PARTY-NOTICES.txt, the licenses of crates linked into the core; `--check` only compares it.

Without cargo it does nothing and succeeds, with a warning.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import generated_page

NATIVE = Path(__file__).parents[1] / "native"
TARGET = "THIRD-PARTY-NOTICES.txt"
PLATFORMS = ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu")
NAMES = ("LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE")

HEAD = """\
service/_native.abi3.so, the native core of embedding-server, has the following libraries linked into it.
This file is generated from native/Cargo.lock and the libraries' own packages (make generated).

The Rust standard library, https://github.com/rust-lang/rust: MIT OR Apache-2.0
Copyright (c) The Rust Project Contributors
"""
RULE = "=" * 100


def linked_crates() -> list[dict[str, Any]]:
    """Returns cargo's description of each crate that is linked, sorted by name, without macros and build scripts."""
    found: dict[str, dict[str, Any]] = {}
    for platform in PLATFORMS:
        command = ["cargo", "metadata", "--locked", "--format-version=1", "--features=python"]
        command.append(f"--filter-platform={platform}")
        metadata = json.loads(subprocess.run(command, cwd=NATIVE, check=True, stdout=subprocess.PIPE).stdout)
        packages = {package["id"]: package for package in metadata["packages"]}
        nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
        waiting = [metadata["resolve"]["root"]]
        seen = set()
        while waiting:
            name = waiting.pop()
            kinds = {kind for target in packages[name]["targets"] for kind in target["kind"]}
            if name in seen or "proc-macro" in kinds:
                continue
            seen.add(name)
            for dependency in nodes[name]["deps"]:
                if any(use["kind"] is None for use in dependency["dep_kinds"]):
                    waiting.append(dependency["pkg"])
        found |= {name: packages[name] for name in seen if packages[name]["source"]}
    return sorted(found.values(), key=lambda crate: (crate["name"], crate["version"]))


def notices(crates: list[dict[str, Any]]) -> str:
    """Returns the notices: a list of the crates, then each license text once, below the names of its crates."""
    lines = [HEAD]
    # The key is the license text's words, because crates break the lines of the same license differently.
    texts: dict[str, tuple[str, list[str]]] = {}
    for crate in crates:
        name = f"{crate['name']} {crate['version']}"
        lines.append(f"{name}, {crate['repository'] or crate['homepage'] or 'crates.io'}: {crate['license']}")
        files = license_files(Path(crate["manifest_path"]).parent)
        if not files:
            lines.append(f"  by {', '.join(crate['authors']) or 'its contributors'}; its package has no license text")
        for file in files:
            text = "\n".join(line.rstrip() for line in file.read_text().strip("\n\f ").splitlines())
            texts.setdefault(" ".join(text.split()), (text, []))[1].append(name)
    for text, names in sorted(texts.values(), key=lambda item: item[1]):
        lines += ["", RULE, ", ".join(dict.fromkeys(names)), RULE, "", text]
    return "\n".join(lines) + "\n"


def license_files(package: Path) -> list[Path]:
    """Returns the files in a package's folder that hold its license or notices."""
    return sorted(file for file in package.iterdir() if file.is_file() and file.name.upper().startswith(NAMES))


if __name__ == "__main__":
    if shutil.which("cargo") is None:
        sys.stderr.write(f"!!! {TARGET} is neither made nor compared: cargo is absent. !!!\n")
        sys.exit(0)
    sys.exit(generated_page.run({TARGET: notices(linked_crates())}, NATIVE))
