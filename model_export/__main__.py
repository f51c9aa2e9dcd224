"""Entry point of the command `model-export` and of `python -m model_export`."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

from model_export.errors import ExportError, disk_fault
from service.errors import ArtifactError

# Modules that only the extra [export] brings.
_EXTRA = ("tensorflow", "tensorflow_recommenders", "tf_keras", "tqdm")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status. An error that the user can fix prints one message and returns 1."""
    status = _run(argv)
    if argv is None:
        # The process ends now. Its last garbage collection would visit all objects of TensorFlow, which takes 0.7 s.
        gc.freeze()
    return status


def _run(argv: Sequence[str] | None) -> int:
    try:
        from model_export.cli import build_parser

        arguments = build_parser().parse_args(argv)
        from model_export.commands import run_command

        run_command(arguments)
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        sys.stderr.write(f"model-export: this installation lacks the extra [export]: {error}\n")
        return 1
    except (ExportError, ArtifactError) as error:
        sys.stderr.write(f"model-export: {error}\n")
        return 1
    except OSError as error:
        if (fault := disk_fault(error)) is None:
            raise
        sys.stderr.write(f"model-export: {fault}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("\nmodel-export: interrupted\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
