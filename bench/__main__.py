"""`python -m bench [MEASURE ...] [--server redis|valkey] [--scale 0.1] [--json FILE]`."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

from bench.ground import as_json, machine, open_run, versions

MEASURES = ("enqueueing", "draining", "waiting", "scheduling", "crashing", "growing", "pages", "mirroring")


def main() -> int:
    """Run the measures and print each figure beside the bare client's."""
    parser = argparse.ArgumentParser(prog="make bench ARGS=...", description=__doc__)
    parser.add_argument(
        "measures", nargs="*", metavar="MEASURE", help=f"of {', '.join(MEASURES)}; all by default"
    )
    parser.add_argument("--server", choices=["redis", "valkey"], help="the first that is found by default")
    parser.add_argument("--scale", type=float, default=1.0, help="0.1 runs a tenth of the jobs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    options = parser.parse_args()
    chosen = options.measures or MEASURES
    if unknown := set(chosen) - set(MEASURES):
        parser.error(f"no such measure: {', '.join(sorted(unknown))}; there are {', '.join(MEASURES)}")
    with open_run(kind=options.server, scale=options.scale) as run:
        print(machine())
        print(f"{run.server.binary.kind} {run.server.binary.version} without persistence; {versions()}")
        print(f"  {'measure':<46} {'value':>12} {'unit':<10} {'x bare':>8}  bar")
        for name in ("bare", *chosen):
            import_module(f"bench.{name}").run(run)
        if options.json:
            options.json.write_text(as_json(run.figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
