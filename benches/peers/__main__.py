#!/usr/bin/env python3
"""infradev beside the tools that people use today, in one run on one machine.

usage: python3 benches/peers (ingest DIR | mount TASK | storage LOCK...)   [--infradev PROGRAM] [--work DIR]
                             [--json FILE]

Every row is measured in turn, round by round, so that a busy moment hits all of them alike; the table shows
medians, 99th percentiles where there are enough rounds, and the ratio to infradev. Peers that are not installed
are named and left out. Needs root, and room in the work directory: up to five times the input.
"""

import argparse
import importlib
import json
import sys


def main():
    parser = argparse.ArgumentParser(prog="benches/peers", description=__doc__.splitlines()[0])
    parser.add_argument("question", choices=["ingest", "mount", "storage"])
    parser.add_argument("arguments", nargs="*", help="ingest: a directory; mount: a built task; "
                        "storage: lock files, or directories of them")
    parser.add_argument("--infradev", default="target/release/infradev")
    parser.add_argument("--work", default="/var/tmp/infradev-peers", help="a directory of its own, removed at the end")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--peers", default="infradev,uv,buildah,ostree", help="storage: which of them, by commas")
    parser.add_argument("--uv", default="uv", help="the program, where it is not on the PATH")
    parser.add_argument("--json", metavar="FILE", help="write the rows there too")
    options = parser.parse_args()
    bench = importlib.import_module(options.question)
    rows, notes = bench.run(options)
    show(rows)
    for note in notes:
        print(f"note: {note}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"schema_version": 1, "question": options.question, "rows": rows, "notes": notes}, file, indent=1)


def show(rows):
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [columns] + [[text(row.get(column, "")) for column in columns] for row in rows]
    widths = [max(len(line[number]) for line in cells) for number in range(len(columns))]
    for line in cells:
        first, *rest = (cell.ljust(width) if number == 0 else cell.rjust(width)
                        for number, (cell, width) in enumerate(zip(line, widths)))
        print("  ".join([first, *rest]).rstrip())


def text(value):
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
