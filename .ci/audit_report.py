"""Prints the findings in a report of pip-audit; exits with 1 if there are any."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(path: str) -> int:
    """Prints the findings of the report at `path`; returns the exit code."""
    report = json.loads(Path(path).read_text())["dependencies"]
    found = [(one["name"], one["version"], fault) for one in report for fault in one.get("vulns", ())]
    unknown = {one["name"]: one["skip_reason"] for one in report if "skip_reason" in one}
    lines = [
        f"FOUND {name} {version}: {fault['id']}, fixed in {', '.join(fault['fix_versions']) or 'no version yet'}"
        for name, version, fault in found
    ]
    looked_up = len(report) - len(unknown)
    if unknown:
        name, why = next(iter(unknown.items()))
        what = "NOTHING" if not looked_up else f"{looked_up} of {len(report)} packages"
        lines.append(f"!!! SKIPPED: {what} was looked up by the dependency audit, for example {name}: {why} !!!")
    lines.append(f"audit: {looked_up} packages looked up, {len(found)} vulnerabilities")
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
